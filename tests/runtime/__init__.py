"""Tests of the durable runtime: handlers, submitting, workers."""

"""The contract suite, kept by the stores of this project; and the suite itself."""

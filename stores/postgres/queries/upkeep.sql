-- Statements of upkeep: retention, users that are deleted, what operators and workers tell.

-- fragment: old
-- What retention may delete. A record that does not say what its row says is left for a person.
SELECT t.account_id, t.user_id, t.task_id, t.ended_at
FROM unnest(%(states)s::text[], %(cutoffs)s::float8[]) AS c (status, cutoff)
CROSS JOIN LATERAL (
    SELECT t.account_id, t.user_id, t.task_id, t.ended_at FROM {tasks} t
    WHERE t.status = c.status AND t.ended_at IS NOT NULL AND t.ended_at <= c.cutoff AND NOT t.unreadable
        AND t.record ->> 'status' = t.status
    ORDER BY t.ended_at
    LIMIT %(limit)s + 1
    FOR UPDATE SKIP LOCKED
) t
WHERE c.cutoff >= (SELECT extract(epoch FROM min(m.applied_at)) FROM {migrations} m)
ORDER BY t.ended_at

-- name: purge
WITH found AS MATERIALIZED (SELECT o.*, row_number() OVER () AS place FROM ({old}) o),
deleted AS (
    DELETE FROM {tasks} t USING found f
    WHERE f.place <= %(limit)s
        AND t.account_id = f.account_id AND t.user_id = f.user_id AND t.task_id = f.task_id
    RETURNING t.account_id, t.user_id, t.task_id
)
SELECT d.account_id, d.user_id, d.task_id, (SELECT count(*) > %(limit)s FROM found) FROM deleted d

-- name: purgeable
SELECT o.account_id, o.user_id, o.task_id FROM ({old}) o

-- name: lock_owner
SELECT pg_advisory_xact_lock(hashtextextended(%(account_id)s || '/' || %(user_id)s, {owner_lock}))

-- fragment: in_the_way
-- Of an owner, what has not ended. What never could be read is not in the way: nobody can ever end it.
t.account_id = %(account_id)s AND t.user_id = %(user_id)s
AND t.status NOT IN ('completed', 'failed', 'cancelled') AND NOT (t.unreadable AND NOT t.blocks)

-- name: not_ended
SELECT t.task_id FROM {tasks} t WHERE {in_the_way} ORDER BY t.created_at, t.task_id

-- name: fence
INSERT INTO {deletions} (account_id, user_id) VALUES (%(account_id)s, %(user_id)s) ON CONFLICT DO NOTHING

-- name: unfence
DELETE FROM {deletions} d WHERE d.account_id = %(account_id)s AND d.user_id = %(user_id)s

-- name: fences
SELECT d.account_id, d.user_id, extract(epoch FROM clock_timestamp() - d.begun_at)::float8 FROM {deletions} d
ORDER BY d.begun_at

-- name: delete_some
-- Of a user that is fenced.
WITH deleted AS (
    DELETE FROM {tasks} t WHERE (t.account_id, t.user_id, t.task_id) IN (
        SELECT o.account_id, o.user_id, o.task_id FROM {tasks} o
        WHERE o.account_id = %(account_id)s AND o.user_id = %(user_id)s
            AND (o.status IN ('completed', 'failed', 'cancelled') OR (o.unreadable AND NOT o.blocks))
        LIMIT %(limit)s
    )
    RETURNING 1
)
SELECT count(*) FROM deleted

-- ---- telling --------------------------------------------------------------------------------------------

-- name: lock_claims
SELECT pg_advisory_xact_lock({claims_lock})

-- name: pause
INSERT INTO {paused} (task_type) VALUES (%(task_type)s) ON CONFLICT DO NOTHING

-- name: unpause
DELETE FROM {paused} p WHERE p.task_type = %(task_type)s

-- name: paused
SELECT p.task_type FROM {paused} p ORDER BY p.task_type

-- name: publish
INSERT INTO {workers} AS w (name, data, life_seconds, published_at)
VALUES (%(name)s, %(data)s::jsonb, %(life_seconds)s, clock_timestamp())
ON CONFLICT (name) DO UPDATE
SET data = excluded.data, life_seconds = excluded.life_seconds, published_at = excluded.published_at

-- name: withdraw
DELETE FROM {workers} w WHERE w.name = %(name)s

-- name: facts
SELECT f.name, f.data, f.life_seconds, f.age
FROM (
    SELECT w.name, w.data, w.life_seconds, extract(epoch FROM clock_timestamp() - w.published_at)::float8 AS age
    FROM {workers} w
) f
WHERE (f.age <= f.life_seconds) = %(living)s
ORDER BY f.name

-- name: forget
DELETE FROM {workers} w WHERE w.name IN (
    SELECT f.name FROM {workers} f
    WHERE extract(epoch FROM clock_timestamp() - f.published_at) > f.life_seconds + %(forgotten_seconds)s
    LIMIT %(limit)s
)

-- name: listen
-- Say that somebody listens, and have him hear himself: then he knows that he hears others. Who did not say it for long
-- is forgotten.
WITH forgotten AS (
    DELETE FROM {listeners} l WHERE l.until < clock_timestamp() - interval '1 hour' AND l.name <> %(name)s
)
INSERT INTO {listeners} AS l (name, changes, until)
VALUES (%(name)s, %(changes)s, clock_timestamp() + make_interval(secs => %(seconds)s))
ON CONFLICT (name) DO UPDATE SET changes = excluded.changes, until = excluded.until
RETURNING CASE WHEN %(probe)s::text IS NOT NULL THEN pg_notify({waiting_channel}, %(probe)s::text) IS NOT NULL END

-- name: listen_no_more
DELETE FROM {listeners} l WHERE l.name = %(name)s

-- name: announce
SELECT pg_notify({waiting_channel}, %(news)s::text)
WHERE EXISTS (SELECT FROM {listeners} l WHERE {listens})

-- ---- examination ----------------------------------------------------------------------------------------

-- name: every
-- All rows, page by page, with the columns that say what the record says.
SELECT t.account_id, t.user_id, t.task_id, t.record, t.revision, t.unreadable,
    t.task_type, t.status, t.resource_id, t.kind, t.blocks, t.created_at, t.handler_version, t.priority, t.not_before,
    t.ended_at, ({leased}) AND t.lease_expires_at IS NULL, t.token IS NOT NULL
FROM {tasks} t
WHERE (t.account_id, t.user_id, t.task_id) > (%(account_id)s, %(user_id)s, %(task_id)s)
ORDER BY t.account_id, t.user_id, t.task_id
LIMIT %(limit)s

-- name: adopt
-- Make the columns of a row say what its record says, if it is still the one that was looked at.
UPDATE {tasks} t SET {said} WHERE {of_key} AND t.revision = %(seen)s

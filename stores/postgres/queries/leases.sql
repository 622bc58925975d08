-- Statements on leases. Every write of a holder names token and epoch; what time it is says the database.

-- fragment: held_by
{of_key} AND t.token = %(token)s AND t.epoch = %(epoch)s AND t.creation = %(creation)s
AND t.lease_expires_at > clock_timestamp()

-- fragment: leased
-- It is held, or runs although nobody holds it: it expires. As the index says it.
(t.token IS NOT NULL OR t.status IN ('running', 'cancelling')) IS TRUE

-- fragment: held
-- A claim: somebody holds it from now on.
epoch = %(epoch)s, token = %(token)s, holder = %(holder)s, attempts = %(attempts)s,
since = coalesce(t.since, clock_timestamp()), heartbeat_at = clock_timestamp(),
lease_expires_at = clock_timestamp() + make_interval(secs => %(lease_seconds)s)

-- name: hold
-- Claim a row that is locked, and write its record.
UPDATE {tasks} t SET {said}, {held} WHERE {of_key} RETURNING t.revision, {told}

-- fragment: told_of_change
-- The fragment `told` for a task that does not wait for a worker.
CASE WHEN %(news)s::text IS NOT NULL AND EXISTS (
    SELECT FROM {listeners} l WHERE {listens} AND l.changes
) THEN pg_notify({changes_channel}, %(news)s::text) IS NOT NULL END

-- name: hold_fresh
-- Claim a row that nobody has touched since this process created it: of what is said of it only the state changes.
UPDATE {tasks} t
SET record = %(record)s::json, revision = DEFAULT, unreadable = false, status = %(status)s, deferred = false, {held}
WHERE {of_key} AND t.revision = %(revision)s AND t.epoch = %(before)s AND t.token IS NULL
RETURNING t.revision, {told_of_change}

-- name: hold_all
-- Claim rows that are locked, each with its record: of what is said of them only the state changes. The lists are in
-- selects of their own so that the server does not count what is in them: then it keeps the plan.
UPDATE {tasks} t
SET record = s.record::json, revision = DEFAULT, status = s.status,
    epoch = s.epoch, token = s.token, holder = %(holder)s, attempts = s.attempts,
    since = coalesce(t.since, clock_timestamp()), heartbeat_at = clock_timestamp(),
    lease_expires_at = clock_timestamp() + make_interval(secs => %(lease_seconds)s)
FROM unnest(
    (SELECT %(account_ids)s::text[]), (SELECT %(user_ids)s::text[]), (SELECT %(task_ids)s::text[]),
    (SELECT %(records)s::text[]), (SELECT %(statuses)s::text[]), (SELECT %(epochs)s::bigint[]),
    (SELECT %(tokens)s::text[]), (SELECT %(attempts)s::bigint[]), (SELECT %(news)s::text[])
) AS s (account_id, user_id, task_id, record, status, epoch, token, attempts, news)
WHERE t.account_id = s.account_id AND t.user_id = s.user_id AND t.task_id = s.task_id
RETURNING t.token, t.revision,
    CASE WHEN s.news IS NOT NULL AND EXISTS (
        SELECT FROM {listeners} l WHERE {listens} AND l.changes
    ) THEN pg_notify({changes_channel}, s.news) IS NOT NULL END

-- name: hold_as_it_is
-- Claim a row that is locked; its record stays.
UPDATE {tasks} t SET {held} WHERE {of_key} RETURNING t.revision

-- name: renew
UPDATE {tasks} t
SET heartbeat_at = clock_timestamp(),
    lease_expires_at = clock_timestamp() + make_interval(secs => %(lease_seconds)s)
WHERE {of_key} AND t.token = %(token)s AND t.epoch = %(epoch)s
RETURNING t.status = 'cancelling'

-- name: commit
-- A cancel that the writer does not know of must not be lost: such a record is read first.
UPDATE {tasks} t SET {said} WHERE {held_by} AND (t.status <> 'cancelling' OR %(knows)s) RETURNING t.revision

-- name: end
-- The last write under a lease that ends the task: whoever wanted to cancel it has nothing more to wait for.
UPDATE {tasks} t
SET record = %(record)s::json, revision = DEFAULT, unreadable = false,
    task_type = %(task_type)s, status = %(status)s, resource_id = %(resource_id)s,
    kind = %(kind)s, blocks = false, alone = false,
    created_at = %(created_at)s::float8, handler_version = %(handler_version)s::bigint, priority = %(priority)s,
    not_before = %(not_before)s::float8, deferred = false, ended_at = %(ended_at)s::float8,
    token = NULL, holder = NULL, since = NULL, heartbeat_at = NULL, lease_expires_at = NULL
WHERE {held_by}
RETURNING t.revision, {told_of_change}

-- name: give_up
-- The last write under a lease that returns the task to the others.
UPDATE {tasks} t SET {said}, {nobody} WHERE {held_by} AND t.status <> 'cancelling' RETURNING t.revision, {told}

-- name: end_all
-- The same for several ends. A row that somebody else has locked is left out, so that none of the others is held up, nor
-- the heartbeats of any: it is written by itself.
WITH held AS MATERIALIZED (
    SELECT t.ctid AS place, s.*
    FROM unnest(
        (SELECT %(account_ids)s::text[]), (SELECT %(user_ids)s::text[]), (SELECT %(task_ids)s::text[]),
        (SELECT %(records)s::text[]), (SELECT %(creations)s::text[]), (SELECT %(tokens)s::text[]),
        (SELECT %(epochs)s::bigint[]), (SELECT %(task_types)s::text[]), (SELECT %(statuses)s::text[]),
        (SELECT %(resource_ids)s::text[]), (SELECT %(kinds)s::text[]), (SELECT %(created_ats)s::float8[]),
        (SELECT %(handler_versions)s::bigint[]), (SELECT %(priorities)s::bigint[]), (SELECT %(not_befores)s::float8[]),
        (SELECT %(ended_ats)s::float8[]), (SELECT %(news)s::text[])
    ) WITH ORDINALITY AS s (
        account_id, user_id, task_id, record, creation, token, epoch, task_type, status, resource_id, kind, created_at,
        handler_version, priority, not_before, ended_at, news, number
    )
    JOIN {tasks} t ON t.account_id = s.account_id AND t.user_id = s.user_id AND t.task_id = s.task_id
    WHERE t.token = s.token AND t.epoch = s.epoch AND t.creation = s.creation
        AND t.lease_expires_at > clock_timestamp()
    FOR NO KEY UPDATE OF t SKIP LOCKED
)
UPDATE {tasks} t
SET record = h.record::json, revision = DEFAULT, unreadable = false,
    task_type = h.task_type, status = h.status, resource_id = h.resource_id,
    kind = decode(h.kind, 'hex'), blocks = false, alone = false,
    created_at = h.created_at, handler_version = h.handler_version, priority = h.priority,
    not_before = h.not_before, deferred = false, ended_at = h.ended_at,
    token = NULL, holder = NULL, since = NULL, heartbeat_at = NULL, lease_expires_at = NULL
FROM held h
WHERE t.ctid = h.place
RETURNING h.number, t.revision,
    CASE WHEN h.news IS NOT NULL AND EXISTS (
        SELECT FROM {listeners} l WHERE {listens} AND l.changes
    ) THEN pg_notify({changes_channel}, h.news) IS NOT NULL END

-- name: look_held
-- The last word of a transaction that writes nothing here: nobody takes the lease before it has ended.
SELECT t.status = 'cancelling' FROM {tasks} t
WHERE {of_key} AND t.token = %(token)s AND t.epoch = %(epoch)s AND t.lease_expires_at > clock_timestamp()
FOR NO KEY UPDATE

-- name: fate
-- What became of a transaction whose commit was not answered.
SELECT pg_xact_status(%(xid)s::text::xid8)

-- name: of_tokens
SELECT {row} FROM {tasks} t WHERE {leased} AND t.token = ANY(%(tokens)s::text[])

-- name: expired
SELECT {row} FROM {tasks} t
WHERE {leased} AND NOT t.unreadable AND t.lease_expires_at <= clock_timestamp()
ORDER BY t.heartbeat_at, t.account_id, t.user_id, t.task_id
LIMIT %(limit)s

-- name: stamp
-- What runs and has no term (a foreign hand wrote it) gets one, and expires when it has passed.
UPDATE {tasks} t
SET since = coalesce(t.since, clock_timestamp()), heartbeat_at = coalesce(t.heartbeat_at, clock_timestamp()),
    lease_expires_at = clock_timestamp() + make_interval(secs => %(lease_seconds)s)
WHERE (t.account_id, t.user_id, t.task_id) IN (
    SELECT t.account_id, t.user_id, t.task_id FROM {tasks} t WHERE {leased} AND t.lease_expires_at IS NULL
    LIMIT %(limit)s FOR UPDATE SKIP LOCKED
)

-- name: set_aside
-- Its record is none: it must not be in the way of others.
UPDATE {tasks} t SET unreadable = true WHERE {of_key} AND t.revision = %(revision)s

-- ---- the queue ------------------------------------------------------------------------------------------

-- fragment: waits
t.status = 'pending' AND t.token IS NULL AND NOT t.deferred AND NOT t.unreadable

-- fragment: kinds
unnest(%(types)s::text[], %(versions)s::bigint[]) AS k (task_type, version)

-- fragment: not_paused
NOT EXISTS (SELECT FROM {paused} p WHERE p.task_type = k.task_type)

-- fragment: heads
-- The heads of all kinds, in one order.
SELECT c.*
FROM {kinds} CROSS JOIN LATERAL (
    SELECT t.ctid AS place, t.account_id, t.user_id, t.task_id, t.priority, t.created_at FROM {tasks} t
    WHERE {waits} AND t.task_type = k.task_type AND t.handler_version = k.version
    ORDER BY t.priority DESC, t.created_at, t.task_id
    LIMIT %(depth)s
) c
WHERE {not_paused}
ORDER BY c.priority DESC, c.created_at, c.task_id
LIMIT %(depth)s

-- fragment: is_due
-- Of those for later the first one is looked at: asked whether there is any, a server that has not counted the rows yet
-- reads the table.
coalesce((SELECT d.not_before FROM {tasks} d WHERE d.deferred ORDER BY d.not_before LIMIT 1) <= {unix_now}, false)

-- name: waiting
-- Whether there may be something to claim, and whether a start time has come. Locks nothing.
SELECT
    EXISTS (
        SELECT FROM {kinds} CROSS JOIN LATERAL (
            SELECT FROM {tasks} t WHERE {waits} AND t.task_type = k.task_type AND t.handler_version = k.version LIMIT 1
        ) c
        WHERE {not_paused}
    ),
    {is_due}

-- name: promote
UPDATE {tasks} t SET deferred = false
WHERE (t.account_id, t.user_id, t.task_id) IN (
    SELECT d.account_id, d.user_id, d.task_id FROM {tasks} d
    WHERE d.deferred AND d.not_before <= {unix_now}
    ORDER BY d.not_before LIMIT %(limit)s FOR UPDATE SKIP LOCKED
)

-- name: lock_types
-- One claimer at a time for each type that has a limit; in one order, so that two never wait for each other.
SELECT pg_advisory_xact_lock(l.key) FROM (SELECT key FROM unnest(%(keys)s::bigint[]) AS u (key) ORDER BY key) l

-- name: running
SELECT t.task_type, count(*) FROM {tasks} t
WHERE {leased} AND t.token IS NOT NULL AND t.task_type = ANY(%(types)s::text[])
GROUP BY t.task_type

-- name: next
-- The first of the heads that nobody has locked, and whether a start time has come that is not in the queue yet. What
-- changed since it was seen is looked at again when it is locked. Heads are found by their places, which do not change
-- within a statement: there is no index that a server that has not counted the rows yet could choose wrongly.
SELECT {row}, {is_due}
FROM ({heads}) h
JOIN {tasks} t ON t.ctid = h.place
WHERE {waits}
ORDER BY t.priority DESC, t.created_at, t.task_id
LIMIT %(most)s
FOR UPDATE OF t SKIP LOCKED

-- name: claimable
-- Whether a start time has come that is not in the queue yet, and the heads; one row without a task if there are none.
SELECT d.is_due, h.account_id, h.user_id, h.task_id
FROM (SELECT {is_due} AS is_due) d LEFT JOIN ({heads}) h ON true
ORDER BY h.priority DESC, h.created_at, h.task_id

-- name: heads_seen
SELECT count(*) FROM ({heads}) h

-- fragment: kinds_left_out
unnest(%(except_types)s::text[], %(except_versions)s::bigint[]) AS e (task_type, version)

-- fragment: old_enough
(%(older_than_seconds)s <= 0 OR t.created_at <= {unix_now} - %(older_than_seconds)s)

-- name: unclaimed
SELECT {row} FROM {tasks} t
WHERE t.status = 'pending' AND t.token IS NULL AND NOT t.unreadable
    AND (%(handled)s::boolean IS NULL OR (t.handler_version IS NOT NULL) = %(handled)s)
    AND {old_enough}
    AND (
        %(types)s::text[] IS NULL
        OR EXISTS (SELECT FROM {kinds} WHERE k.task_type = t.task_type AND k.version = t.handler_version)
    )
    AND (
        %(except_types)s::text[] IS NULL
        OR NOT EXISTS (
            SELECT FROM {kinds_left_out} WHERE e.task_type = t.task_type AND e.version = t.handler_version
        )
    )
ORDER BY t.created_at, t.task_id, t.user_id
LIMIT %(limit)s

-- fragment: first_deferred
(SELECT d.* FROM {tasks} d WHERE d.deferred ORDER BY d.not_before LIMIT %(most_deferred)s)

-- name: waiting_kinds
-- Each next kind is where its predecessor ends in the queue's index, so that it does not matter how many tasks there are
-- of each. Those for later are in no such order: of these the first ones are looked at.
WITH RECURSIVE types AS (
    (SELECT t.task_type FROM {tasks} t WHERE {waits} ORDER BY t.task_type LIMIT 1)
    UNION ALL
    SELECT (
        SELECT t.task_type FROM {tasks} t WHERE {waits} AND t.task_type > y.task_type ORDER BY t.task_type LIMIT 1
    )
    FROM types y WHERE y.task_type IS NOT NULL
), kinds AS (
    SELECT y.task_type, (
        SELECT t.handler_version FROM {tasks} t
        WHERE {waits} AND t.task_type = y.task_type AND t.handler_version IS NOT NULL
        ORDER BY t.handler_version LIMIT 1
    ) AS version
    FROM types y WHERE y.task_type IS NOT NULL
    UNION ALL
    SELECT k.task_type, (
        SELECT t.handler_version FROM {tasks} t
        WHERE {waits} AND t.task_type = k.task_type AND t.handler_version > k.version
        ORDER BY t.handler_version LIMIT 1
    )
    FROM kinds k WHERE k.version IS NOT NULL
)
SELECT k.task_type, k.version FROM kinds k WHERE k.version IS NOT NULL
UNION
SELECT t.task_type, t.handler_version FROM {first_deferred} t WHERE t.handler_version IS NOT NULL

-- name: unclaimed_by_kind
-- Tasks of few kinds, found without a look at others: all of them if they are fewer than the limit, otherwise some. They
-- are in the order of the queue's index so that this is the one that is used.
SELECT {row} FROM (
    SELECT w.* FROM {kinds} CROSS JOIN LATERAL (
        SELECT t.* FROM {tasks} t
        WHERE {waits} AND t.task_type = k.task_type AND t.handler_version = k.version AND {old_enough}
        ORDER BY t.priority DESC, t.created_at, t.task_id
        LIMIT %(limit)s
    ) w
    UNION ALL
    SELECT t.* FROM {first_deferred} t
    WHERE t.status = 'pending' AND t.token IS NULL AND NOT t.unreadable AND {old_enough}
        AND EXISTS (SELECT FROM {kinds} WHERE k.task_type = t.task_type AND k.version = t.handler_version)
) t
ORDER BY t.created_at, t.task_id, t.user_id
LIMIT %(limit)s

-- name: next_due
-- The next start time of a task of these kinds. There is no index of the kinds of tasks for later, so the first ones are
-- looked at: if none of them is of these kinds and there are more, it is not before the last one's.
SELECT (coalesce(
    min(f.not_before) FILTER (WHERE k.task_type IS NOT NULL),
    CASE WHEN count(*) >= %(most_deferred)s THEN max(f.not_before) END
) - {unix_now})::float8
FROM (
    SELECT d.not_before, d.task_type, d.handler_version FROM {tasks} d
    WHERE d.deferred AND d.not_before > {unix_now} ORDER BY d.not_before LIMIT %(most_deferred)s
) f
LEFT JOIN {kinds} ON k.task_type = f.task_type AND k.version = f.handler_version

-- name: workload
SELECT w.number, r.number,
    greatest(0, {unix_now} - w.oldest)::float8,
    greatest(0, extract(epoch FROM clock_timestamp() - r.oldest))::float8
FROM (
    SELECT count(*) AS number, min(t.created_at) AS oldest FROM {tasks} t
    WHERE t.status = 'pending' AND t.token IS NULL AND NOT t.unreadable
) w, (
    SELECT count(*) AS number, min(t.since) AS oldest FROM {tasks} t
    WHERE {leased} AND t.status IN ('running', 'cancelling') AND NOT t.unreadable
) r

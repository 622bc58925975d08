-- Statements on records. A fragment is text that others take in by its name in braces.

-- fragment: of_key
-- Which row.
t.account_id = %(account_id)s AND t.user_id = %(user_id)s AND t.task_id = %(task_id)s

-- fragment: unix_now
-- The database's time, looked up once in a statement: so an index can be searched for it.
(SELECT extract(epoch FROM clock_timestamp())::float8)

-- fragment: row
-- What `stores.postgres.rows.Row` holds, in this order.
t.account_id, t.user_id, t.task_id, t.record, t.revision, t.creation, t.status, t.epoch, t.token, t.holder,
t.attempts, t.heartbeat_at, extract(epoch FROM clock_timestamp() - t.heartbeat_at)::float8,
coalesce(t.lease_expires_at > clock_timestamp(), false), {unix_now}

-- fragment: columns
account_id, user_id, task_id, creation, record, task_type, status, resource_id, kind, blocks, alone, created_at,
handler_version, priority, not_before, deferred, ended_at, epoch, attempts, since, heartbeat_at, lease_expires_at

-- fragment: values
%(account_id)s, %(user_id)s, %(task_id)s, %(creation)s, %(record)s::json, %(task_type)s, %(status)s,
%(resource_id)s, %(kind)s, %(blocks)s, %(alone)s AND %(blocks)s, %(created_at)s::float8, %(handler_version)s::bigint,
%(priority)s, %(not_before)s::float8,
%(status)s = 'pending' AND coalesce(%(not_before)s::float8 > {unix_now}, false),
%(ended_at)s::float8, %(epoch)s, %(attempts)s,
CASE WHEN %(runs)s THEN clock_timestamp() END,
CASE WHEN %(runs)s THEN clock_timestamp() END,
CASE WHEN %(runs)s THEN clock_timestamp() + make_interval(secs => %(lease_seconds)s) END

-- fragment: said
-- What a record says, in place of what it said before. Once it is of another kind, or blocks its kind no longer, it is
-- not among those that are alone, and never again: so no update can meet another one there.
record = %(record)s::json, revision = DEFAULT, unreadable = false,
task_type = %(task_type)s, status = %(status)s, resource_id = %(resource_id)s,
kind = %(kind)s, blocks = %(blocks)s, alone = t.alone AND %(blocks)s AND t.kind = %(kind)s,
created_at = %(created_at)s::float8, handler_version = %(handler_version)s::bigint, priority = %(priority)s,
not_before = %(not_before)s::float8,
deferred = %(status)s = 'pending' AND coalesce(%(not_before)s::float8 > {unix_now}, false),
ended_at = %(ended_at)s::float8

-- fragment: nobody
-- Nobody holds it any more; if it runs all the same, this write is a sign of life.
token = NULL, holder = NULL,
since = CASE WHEN %(runs)s THEN coalesce(t.since, clock_timestamp()) END,
heartbeat_at = CASE WHEN %(runs)s THEN clock_timestamp() END,
lease_expires_at = CASE WHEN %(runs)s THEN clock_timestamp() + make_interval(secs => %(lease_seconds)s) END

-- fragment: listens
-- Who may be told. Where nobody listens nothing is sent: commits with a notification go one by one, in the whole cluster.
-- Nothing is sent either once their queue is half full: were it full, the commit would fail, and not every transaction is
-- this library's to begin again.
l.until > clock_timestamp() AND pg_notification_queue_usage() < 0.5

-- fragment: told
-- Tells those who listen, when this is committed and not before: of a task that waits for a worker all of them, of
-- another change those who wait for changes. Of one that waits for its start time as well: a worker that sleeps for long
-- is to learn when that is.
CASE WHEN %(news)s::text IS NOT NULL THEN (
    SELECT pg_notify(CASE WHEN n.waits THEN {waiting_channel} ELSE {changes_channel} END, %(news)s::text) IS NOT NULL
    FROM (SELECT %(waits)s::boolean AS waits) n
    WHERE EXISTS (
        SELECT FROM {listeners} l
        WHERE {listens} AND (n.waits OR l.changes)
    )
) END

-- name: create
WITH gate AS MATERIALIZED (SELECT {may_create}(%(account_id)s, %(user_id)s) AS open),
added AS (
    INSERT INTO {tasks} ({columns}) SELECT {values} FROM gate WHERE gate.open
    ON CONFLICT (account_id, user_id, task_id) DO NOTHING
    RETURNING revision, {told} AS told
)
SELECT gate.open, (SELECT revision FROM added), {unix_now} FROM gate

-- name: create_alone
-- Two that come at once meet in the unique index: the later one waits, and adds nothing if the first one is committed.
-- It sees that one when it asks again.
WITH gate AS MATERIALIZED (SELECT {may_create}(%(account_id)s, %(user_id)s) AS open),
asked AS MATERIALIZED (
    SELECT
        EXISTS (
            SELECT FROM {tasks} t WHERE t.account_id = %(account_id)s AND t.user_id = %(user_id)s
            AND t.kind = %(kind)s AND t.blocks
        ) AS blocked,
        EXISTS (SELECT FROM {tasks} t WHERE {of_key}) AS taken
),
added AS (
    INSERT INTO {tasks} ({columns}) SELECT {values} FROM gate, asked
    WHERE gate.open AND NOT asked.blocked AND NOT asked.taken
    ON CONFLICT DO NOTHING
    RETURNING revision, {told} AS told
)
SELECT gate.open, asked.blocked, asked.taken, (SELECT revision FROM added), {unix_now} FROM gate, asked

-- name: get
SELECT t.revision, CASE WHEN t.revision = %(known)s THEN NULL ELSE t.record END FROM {tasks} t WHERE {of_key}

-- name: look
SELECT {row} FROM {tasks} t WHERE {of_key}

-- name: lock
SELECT {row} FROM {tasks} t WHERE {of_key} FOR UPDATE

-- name: keep
-- Write a record that is locked; whoever holds it goes on.
UPDATE {tasks} t SET {said} WHERE {of_key} RETURNING t.revision, {told}

-- name: free
-- Write a record that is locked; nobody holds it afterwards.
UPDATE {tasks} t SET {said}, {nobody}, epoch = %(epoch)s, attempts = %(attempts)s WHERE {of_key}
RETURNING t.revision, {told}

-- name: delete
DELETE FROM {tasks} t WHERE {of_key}

-- fragment: page_user
AND t.user_id = %(user_id)s

-- fragment: page_status
AND t.status = %(status)s

-- fragment: page_type
AND t.task_type = %(task_type)s

-- fragment: page_resource
AND t.resource_id = %(resource_id)s

-- fragment: page_before
AND (t.created_at, t.task_id, t.user_id) < (%(before_time)s::float8, %(before_task)s, %(before_user)s)

-- name: page
(
    SELECT false AS set_aside, t.user_id, t.task_id, t.created_at, t.revision, t.record
    FROM {tasks} t
    WHERE t.account_id = %(account_id)s
        {filters}
        AND NOT t.unreadable
    ORDER BY t.created_at DESC, t.task_id DESC, t.user_id DESC
    LIMIT %(limit)s
)
UNION ALL
(
    SELECT true, t.user_id, t.task_id, t.created_at, t.revision, t.record
    FROM {tasks} t
    WHERE t.account_id = %(account_id)s AND (%(user_id)s::text IS NULL OR t.user_id = %(user_id)s) AND t.unreadable
    LIMIT %(most_unreadable)s
)

-- name: has_active
SELECT EXISTS (
    SELECT FROM {tasks} t
    WHERE t.account_id = %(account_id)s AND t.kind = %(kind)s AND t.blocks
        AND (%(user_id)s::text IS NULL OR t.user_id = %(user_id)s)
)

-- name: find_active
SELECT t.task_id, t.revision, t.record FROM {tasks} t
WHERE t.account_id = %(account_id)s AND t.kind = %(kind)s AND t.blocks AND t.user_id = %(user_id)s
    AND t.status = ANY(%(states)s::text[])
ORDER BY t.created_at DESC, t.task_id DESC

-- name: count
SELECT t.task_type, t.status, count(*) FROM {tasks} t
WHERE t.account_id = %(account_id)s AND (%(user_id)s::text IS NULL OR t.user_id = %(user_id)s) AND NOT t.unreadable
GROUP BY t.task_type, t.status

-- name: owners
-- Some of all owners, in order, those after a certain one: each is found from the one before, whatever they have.
WITH RECURSIVE found AS (
    (
        SELECT t.account_id, t.user_id FROM {tasks} t
        WHERE %(account_id)s::text IS NULL OR (t.account_id, t.user_id) > (%(account_id)s::text, %(user_id)s::text)
        ORDER BY t.account_id, t.user_id
        LIMIT 1
    )
    UNION ALL
    SELECT n.account_id, n.user_id
    FROM found f CROSS JOIN LATERAL (
        SELECT t.account_id, t.user_id FROM {tasks} t
        WHERE (t.account_id, t.user_id) > (f.account_id, f.user_id)
        ORDER BY t.account_id, t.user_id
        LIMIT 1
    ) n
)
SELECT account_id, user_id FROM found LIMIT %(limit)s

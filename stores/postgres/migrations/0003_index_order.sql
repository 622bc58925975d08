-- As long as nobody has looked at what is in a table, the planner takes all its indexes for equally good, and of those
-- that fit it takes the one that was made last. A plan that was made then is kept, however large the table gets. So the
-- indexes that say most are made again, last: those of one user after those of an account, and the primary key at the
-- very end. Otherwise every look for one task goes through all tasks of its account.

DROP INDEX IF EXISTS {schema}.{index_owner}, {schema}.{index_owner_status};
CREATE INDEX {index_owner} ON {tasks} (account_id, user_id, created_at DESC, task_id DESC);
CREATE INDEX {index_owner_status} ON {tasks} (account_id, user_id, status, created_at DESC, task_id DESC);

DO $primary_key$
DECLARE
    old name;
    names_rows boolean; -- for replication, if somebody has said so
BEGIN
    SELECT c.conname, i.indisreplident INTO old, names_rows
    FROM pg_constraint c JOIN pg_index i ON i.indexrelid = c.conindid
    WHERE c.conrelid = {tasks_name}::regclass AND c.contype = 'p';
    EXECUTE format(
        'ALTER TABLE %s DROP CONSTRAINT %I, ADD CONSTRAINT %I PRIMARY KEY (account_id, user_id, task_id)',
        {tasks_name}::regclass, old, old);
    IF names_rows THEN
        EXECUTE format('ALTER TABLE %s REPLICA IDENTITY USING INDEX %I', {tasks_name}::regclass, old);
    END IF;
EXCEPTION WHEN dependent_objects_still_exist THEN
    -- Somebody's foreign key refers to it; that is worth more.
    RAISE NOTICE 'the primary key of % stays as it is, since others refer to it', {tasks_name};
END
$primary_key$;

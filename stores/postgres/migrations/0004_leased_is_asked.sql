-- What is held, or runs although nobody holds it, is said by the index and by those who ask for it. Of a generated column
-- the server reads the expression again in each statement that writes, heartbeats too. IS TRUE keeps the index apart from
-- questions for a token, which go by the key.

ALTER TABLE {tasks} DROP COLUMN leased;
CREATE INDEX {index_leased} ON {tasks} (task_type)
    WHERE (token IS NOT NULL OR status IN ('running', 'cancelling')) IS TRUE;

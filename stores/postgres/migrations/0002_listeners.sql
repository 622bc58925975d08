-- Who listens for notifications: nothing is sent while nobody does.

CREATE TABLE {listeners} (
    name text COLLATE "C" PRIMARY KEY,
    changes boolean NOT NULL,
    until timestamptz NOT NULL
);
COMMENT ON TABLE {listeners} IS 'Processes that listen for notifications: to tasks that wait for a worker, and to other changes';
COMMENT ON COLUMN {listeners}.changes IS 'It also waits for other changes than tasks that wait for a worker';
COMMENT ON COLUMN {listeners}.until IS 'When it counts as gone, unless it is heard of before';

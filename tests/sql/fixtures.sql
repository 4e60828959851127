-- name: drop_schema
-- Take a test's schema away, with its views and its role.
drop schema if exists {schema} cascade;
drop schema if exists {views} cascade;
drop role if exists {role}

-- name: create_database
-- A database of a test's own.
create database {name}

-- name: drop_database
-- Take it away, whoever is connected.
drop database if exists {name} with (force)

-- name: shift_clock
-- Move the clock of a log.
update {schema}.clock set shift = shift + make_interval(secs => {seconds})

-- name: end_sessions
-- End sessions by their application's name.
select pg_terminate_backend(pid) from pg_stat_activity where application_name = %(name)s

-- name: as_service
-- What follows is done by the service.
set role {role};

-- name: as_replica
-- What follows is done without the triggers that a replica leaves out.
set session_replication_role = replica;

-- name: update_event
-- Rewrite history.
update event set body = 'x'

-- name: delete_event
-- Forget history.
delete from event

-- name: truncate_event
-- Forget all of history.
truncate event

-- name: lower_epoch
-- Let an epoch fall.
update lease set epoch = epoch - 1

-- name: append_nothing
-- An append of no requests.
select append_v1('{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}',
    '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}')

-- name: take_append_lock
-- Sit on the lock under which positions are given out.
select pg_advisory_xact_lock(append_lock_v1())

-- name: table_named
-- Whether a table is there.
select to_regclass(%(name)s)::text

-- name: create_user
-- Somebody without any privilege.
create user {name}

-- name: let_create
-- Let a user make schemas in a database.
grant create on database {database} to {name}

-- name: drop_user
-- Take a user away with all that it owns.
drop owned by {name} cascade;
drop user {name}

-- name: one
-- Whether the server answers.
select 1

-- name: remember
-- Something that a restart must not lose.
create table remembered as select 7 as what

-- name: recall
-- Whether it was lost.
select what from remembered

-- name: tables_of
-- Every table of a schema.
select tablename from pg_tables where schemaname = %(schema)s

-- name: rows_of
-- A whole table as text.
select t.*::text from {schema}.{table} t

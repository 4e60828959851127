-- name: enter
-- The schema need not exist yet.
set search_path = {schema}, pg_temp;
set client_min_messages = warning;
set timezone = 'UTC';
set default_transaction_isolation = 'read committed';
set lock_timeout = '60s';
set idle_in_transaction_session_timeout = '60s'

-- name: lock
-- One at a time in a database: two processes may start together.
select pg_advisory_xact_lock(hashtextextended('turnkeeper migrate', 0))

-- name: prepare
-- The schema and the record of what was applied.
create schema if not exists {schema};
create table if not exists migration (
    number     integer     primary key,
    name       text        not null,
    checksum   text        not null,
    applied_at timestamptz not null default clock_timestamp()
)

-- name: applied
-- Numbers and checksums of what was applied.
select number, checksum from migration

-- name: record
-- One migration was applied.
insert into migration (number, name, checksum) values (%(number)s, %(name)s, %(checksum)s)

-- name: user
-- Whom a connection string connects as.
select session_user

-- name: role_state
-- Whether the service's role is there, and whether the connecting user may take it on.
select coalesce(bool_or(true), false), coalesce(bool_or(pg_has_role(current_user, oid, 'member')), false)
  from pg_roles where rolname = %(role)s

-- name: create_role
-- The role of the service; nobody logs in as it.
create role {role} nologin

-- name: join_role
-- The connecting user may become the service.
grant {role} to current_user

-- name: grant
-- What the service may do: add to the log and read it; keep leases, queue and contents; own its views.
grant usage on schema {schema} to {role};
revoke all on all tables in schema {schema} from {role};
grant select on all tables in schema {schema} to {role};
grant insert on event to {role};
grant insert, update on lease, queue to {role};
grant insert, update, delete on content to {role};
grant execute on all functions in schema {schema} to {role};
create schema if not exists {views};
grant usage, create on schema {views} to {role}

-- name: views_without_role
-- Views have a schema of their own, so that they can be dropped and rebuilt without touching the log.
create schema if not exists {views}

-- name: remember_role
-- Connections of the service take this role on.
insert into meta (key, value) values ('service_role', %(role)s)
on conflict (key) do update set value = excluded.value

-- name: service_role
-- The role of the service, if the server allowed one.
select value from meta where key = 'service_role'

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

-- name: enter
-- A connection as the connecting user.
set search_path = {schema}, pg_temp;
set timezone = 'UTC';
set client_encoding = 'UTF8';
set default_transaction_isolation = 'read committed';
set lock_timeout = {lock_timeout};
set statement_timeout = {statement_timeout};
set idle_in_transaction_session_timeout = {idle_timeout}

-- name: enter_as
-- A connection as the service: it may add to the log and read it, and nothing else.
set role {role};
set search_path = {schema}, pg_temp;
set timezone = 'UTC';
set client_encoding = 'UTF8';
set default_transaction_isolation = 'read committed';
set lock_timeout = {lock_timeout};
set statement_timeout = {statement_timeout};
set idle_in_transaction_session_timeout = {idle_timeout}

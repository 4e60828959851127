-- name: append
-- A batch of requests (see migrations/0003_append_v1.sql).
select base, recorded_at, bad_req, bad_code, bad_position, bad_at from append_v1(
    %b, %b,
    %b, %b, %b, %b,
    %b, %b, %b,
    %b, %b, %b, %b, %b, %b, %b, %b, %b,
    %b, %b, %b, %b, %b, %b,
    %b, %b, %b, %b, %b,
    %b, %b, %b, %b, %b, %b, %b)

-- name: read_stream
-- One stream after a version.
select position, stream, version, type, schema, body, metadata, recorded_at
  from event where stream = %(stream)s and version > %(after)s order by version

-- name: read_streams
-- Several whole streams; one statement sees one moment.
select position, stream, version, type, schema, body, metadata, recorded_at
  from event where stream = any(%(streams)s) order by stream, version

-- name: read
-- The log after a position.
select position, stream, version, type, schema, body, metadata, recorded_at
  from event where position > %(after)s order by position limit %(limit)s

-- name: head
-- The last position.
select coalesce((select position from event order by position desc limit 1), 0)

-- name: now
-- The clock of the log.
select tk_now()

-- name: contents
-- Texts that were not erased.
select id, text, salt from content where id = any(%(ids)s)

-- name: erase_contents
-- Takes texts and their salts away; the events keep only a digest that nobody can check any more.
delete from content where id = any(%(ids)s)

-- name: renew_lease
-- See migrations/0004_renew_lease_v1.sql.
select outcome, until from renew_lease_v1(%(scope)s, %(epoch)s, %(hash)s, %(ttl_ms)s)

-- name: lease
-- The lease of one scope.
select scope, epoch, lease_id, holder, expires_at from lease where scope = %(scope)s

-- name: leases
-- Leases that somebody holds, late ones too.
select scope, epoch, lease_id, holder, expires_at from lease where expires_at is not null order by scope

-- name: candidates
-- Per repository without a running lease its first available task. A loose scan: from repository to repository by the
-- index, so that fifty thousand tasks behind one busy repository cost one step. The scope of a repository's lease is
-- "repo:" and its key (domain.ids.lease_scope).
with recursive
    moment as materialized (select tk_now() as at),
    repo(name) as (
        (select q.repo from queue q where q.available_at is not null order by q.repo limit 1)
        union all
        select (select q.repo from queue q
                 where q.available_at is not null and q.repo > repo.name order by q.repo limit 1)
          from repo where repo.name is not null
    )
select c.task, c.repo, c.session, c.position, c.available_at
  from moment, repo
 cross join lateral (
    select q.task, q.repo, q.session, q.position, q.ordinal, q.available_at
      from queue q
     where q.repo = repo.name and q.available_at <= moment.at
       and not exists (
            select 1 from queue o
             where o.session = q.session and o.available_at > moment.at
               and (o.position, o.ordinal) < (q.position, q.ordinal))
     order by q.position, q.ordinal
     limit 1
  ) c
 where repo.name is not null
   and not exists (
        select 1 from lease l
         where l.scope = 'repo:' || repo.name and l.expires_at > moment.at)
 order by c.position, c.ordinal
 limit %(limit)s

-- name: next_available
-- When the next task that waits for a time becomes available.
select min(q.available_at) from queue q where q.available_at > (select tk_now())

-- name: identity
-- The id of this log, and the role of the service if there is one.
select (select value from meta where key = 'log_id'),
       (select value from meta where key = 'service_role'),
       append_channel_v1()

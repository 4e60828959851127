-- The key of the lock under which positions are given out: one per schema.
create function append_lock_v1() returns bigint language plpgsql stable set search_path from current as $$
begin
    return hashtextextended('turnkeeper append ' || current_schema(), 0);
end $$;

-- Where appends are announced: one channel per schema.
create function append_channel_v1() returns text language plpgsql stable set search_path from current as $$
begin
    return 'turnkeeper_' || md5(current_schema());
end $$;

-- Appends a batch of requests; each is taken whole or not at all, and a loser never fails its neighbours.
--
-- Requests are numbered from 1 (r_id, r_count: its id and how many events it has). Arrays with one prefix belong together:
--   f_ fences     x_ premises     l_ lease operations (l_acquire false: end)     q_ queue (q_put false: drop)
--   c_ contents   e_ events, in the order of their requests
-- No two requests of a batch may share a written stream, a lease scope, a task or a content id (the caller sees to it).
--
-- Answers the last position before this batch, when the batch was recorded, and the requests that were not appended:
-- their number, why, and for 'replayed' (the same request id stands in the log already) where its first event stands.
create function append_v1(
    r_id uuid[], r_count integer[],
    f_req integer[], f_scope text[], f_epoch bigint[], f_hash bytea[],
    x_req integer[], x_stream text[], x_version bigint[],
    l_req integer[], l_acquire boolean[], l_scope text[], l_epoch bigint[], l_force boolean[],
    l_id text[], l_holder text[], l_hash bytea[], l_ttl_ms bigint[],
    q_req integer[], q_put boolean[], q_task text[], q_repo text[], q_session text[], q_at timestamptz[],
    c_req integer[], c_id text[], c_text bytea[], c_salt bytea[], c_replace boolean[],
    e_req integer[], e_stream text[], e_version bigint[], e_type text[], e_schema integer[],
    e_body bytea[], e_metadata bytea[],
    out base bigint, out recorded_at timestamptz,
    out bad_req integer[], out bad_code text[], out bad_position bigint[], out bad_at timestamptz[]
)
language plpgsql volatile
set search_path from current
-- every look-up below is by key: a plan made while a table was small must not stay a scan when it has grown
set enable_seqscan = off
as $$
#variable_conflict use_column
declare
    last_at  timestamptz;
    appended bigint;
begin
    -- Under a stricter isolation the statements below would not see what was committed before the lock was granted.
    if current_setting('transaction_isolation') <> 'read committed' then
        raise exception 'append_v1 needs read committed' using errcode = 'TK003';
    end if;

    -- Taken before anything is read and held until commit: the order of positions is the order of commits, so a reader
    -- that has seen position n has seen everything below it.
    perform pg_advisory_xact_lock(append_lock_v1());

    -- Lock order: the advisory lock, then lease rows. A renewal (the only other writer of leases) cannot slip in between
    -- the check below and the change.
    if cardinality(l_req) > 0 then
        perform 1 from lease l where l.scope = any(l_scope) order by l.scope for update;
    end if;

    select e.position, e.recorded_at into base, last_at from event e order by e.position desc limit 1;
    base := coalesce(base, 0);
    append_v1.recorded_at := greatest(tk_now(), last_at);

    select array_agg(b.req order by b.req), array_agg(b.code order by b.req)
      into bad_req, bad_code
      from (
        select u.req,
               (array['lease_stale', 'lease_expired', 'version_conflict', 'lease_held', 'content_conflict'])[min(u.rank)] as code
          from (
            select f.req,
                   case when l.epoch is distinct from f.epoch or l.token_hash is distinct from f.hash then 1
                        when l.expires_at is null or l.expires_at <= append_v1.recorded_at then 2 end as rank
              from unnest(f_req, f_scope, f_epoch, f_hash) f(req, scope, epoch, hash)
              left join lease l on l.scope = f.scope
            union all
            select x.req, 3
              from unnest(x_req, x_stream, x_version) x(req, stream, version)
             where x.version <> coalesce(
                (select e.version from event e where e.stream = x.stream order by e.version desc limit 1), 0)
            union all
            -- an end needs a lease that somebody holds at that epoch, and a reason: late, its own fence, or proven death
            select o.req,
                   case when l.epoch is distinct from o.epoch or l.expires_at is null then 1
                        when not o.force and l.expires_at > append_v1.recorded_at and not exists (
                            select 1 from unnest(f_req, f_scope, f_epoch) f(req, scope, epoch)
                             where f.req = o.req and f.scope = o.scope and f.epoch = o.epoch) then 4 end
              from unnest(l_req, l_acquire, l_scope, l_epoch, l_force) o(req, acquire, scope, epoch, force)
              left join lease l on l.scope = o.scope
             where not o.acquire
            union all
            -- an acquisition needs the next epoch of a lease that is free, late, or ended by the same request
            select o.req,
                   case when coalesce(l.epoch, 0) + 1 <> o.epoch then 4
                        when l.expires_at > append_v1.recorded_at and not exists (
                            select 1 from unnest(l_req, l_acquire, l_scope) d(req, acquire, scope)
                             where d.req = o.req and d.scope = o.scope and not d.acquire) then 4 end
              from unnest(l_req, l_acquire, l_scope, l_epoch) o(req, acquire, scope, epoch)
              left join lease l on l.scope = o.scope
             where o.acquire
            union all
            select c.req, 5
              from unnest(c_req, c_id, c_text, c_salt, c_replace) c(req, id, text, salt, replace)
              join content k on k.id = c.id
             where not c.replace and (k.text <> c.text or k.salt <> c.salt)
          ) u
         where u.rank is not null
         group by u.req
      ) b;

    -- A request that was committed before always loses here, because its own events moved its premises: tell it where
    -- they stand.
    if bad_req is not null then
        select array_agg(case when p.position is null then b.code else 'replayed' end order by b.req),
               array_agg(p.position order by b.req),
               array_agg(p.recorded_at order by b.req)
          into bad_code, bad_position, bad_at
          from unnest(bad_req, bad_code) b(req, code)
          left join lateral (
            select l.position, l.recorded_at
              from unnest(e_req, e_stream, e_version) with ordinality e(req, stream, version, ord)
              join event l on l.stream = e.stream and l.version = e.version
             where e.req = b.req and l.request_id = r_id[b.req]
             order by e.ord
             limit 1
          ) p on true;
    end if;

    if bad_req is null then
        insert into event (position, stream, version, type, schema, body, metadata, request_id, recorded_at)
        select append_v1.base + e.ord, e.stream, e.version, e.type, e.schema, e.body, e.metadata,
               r_id[e.req], append_v1.recorded_at
          from unnest(e_req, e_stream, e_version, e_type, e_schema, e_body, e_metadata)
               with ordinality e(req, stream, version, type, schema, body, metadata, ord);
    else
        insert into event (position, stream, version, type, schema, body, metadata, request_id, recorded_at)
        select append_v1.base + row_number() over (order by e.ord), e.stream, e.version, e.type, e.schema, e.body,
               e.metadata, r_id[e.req], append_v1.recorded_at
          from unnest(e_req, e_stream, e_version, e_type, e_schema, e_body, e_metadata)
               with ordinality e(req, stream, version, type, schema, body, metadata, ord)
         where e.req <> all(bad_req);
    end if;
    get diagnostics appended = row_count;

    if cardinality(l_req) > 0 then
        update lease l set expires_at = null
          from unnest(l_req, l_acquire, l_scope) o(req, acquire, scope)
         where l.scope = o.scope and not o.acquire and (bad_req is null or o.req <> all(bad_req));
        insert into lease as l (scope, epoch, lease_id, holder, token_hash, expires_at)
        select o.scope, o.epoch, o.id, o.holder::json, o.hash,
               append_v1.recorded_at + o.ttl_ms * interval '1 millisecond'
          from unnest(l_req, l_acquire, l_scope, l_epoch, l_id, l_holder, l_hash, l_ttl_ms)
               o(req, acquire, scope, epoch, id, holder, hash, ttl_ms)
         where o.acquire and (bad_req is null or o.req <> all(bad_req))
        on conflict (scope) do update
           set epoch = excluded.epoch, lease_id = excluded.lease_id, holder = excluded.holder,
               token_hash = excluded.token_hash, expires_at = excluded.expires_at;
    end if;

    if cardinality(q_req) > 0 then
        update queue q set available_at = null
          from unnest(q_req, q_put, q_task) o(req, put, task)
         where q.task = o.task and not o.put and (bad_req is null or o.req <> all(bad_req));
        insert into queue as q (task, repo, session, position, ordinal, available_at)
        select o.task, o.repo, o.session, append_v1.base + 1 + r.before, o.ord, coalesce(o.at, append_v1.recorded_at)
          from unnest(q_req, q_put, q_task, q_repo, q_session, q_at)
               with ordinality o(req, put, task, repo, session, at, ord)
          join (
            select c.req, sum(c.count) over (order by c.req) - c.count as before
              from unnest(r_count) with ordinality c(count, req)
             where bad_req is null or c.req <> all(bad_req)
          ) r on r.req = o.req
         where o.put
        on conflict (task) do update
           set repo = excluded.repo, session = excluded.session, available_at = excluded.available_at;
    end if;

    if cardinality(c_req) > 0 then
        insert into content as k (id, text, salt)
        select c.id, c.text, c.salt
          from unnest(c_req, c_id, c_text, c_salt, c_replace) c(req, id, text, salt, replace)
         where bad_req is null or c.req <> all(bad_req)
        on conflict (id) do update set text = excluded.text, salt = excluded.salt;
    end if;

    -- Once per batch: announcing takes a lock of the whole server at commit.
    if appended > 0 then
        perform pg_notify(append_channel_v1(), (append_v1.base + appended)::text);
    end if;
end $$;

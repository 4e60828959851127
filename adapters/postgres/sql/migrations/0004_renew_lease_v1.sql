-- Prolongs an unexpired lease; the only writer of leases besides append_v1. Never revives an expired or ended one.
-- Answers 'renewed' with the new end, 'lease_stale' (another epoch or token) or 'lease_expired' (right, but late).
create function renew_lease_v1(
    of_scope text, of_epoch bigint, of_hash bytea, ttl_ms bigint,
    out outcome text, out until timestamptz
)
language plpgsql volatile set search_path from current as $$
declare
    held lease;
begin
    -- locked first and timed afterwards: waiting for the lock must not make a late renewal look early
    select l.* into held from lease l where l.scope = of_scope for update;
    if held.epoch is distinct from of_epoch or held.token_hash is distinct from of_hash then
        outcome := 'lease_stale';
        return;
    end if;
    until := tk_now();
    if held.expires_at is null or held.expires_at <= until then
        outcome := 'lease_expired';
        until := null;
        return;
    end if;
    outcome := 'renewed';
    until := greatest(held.expires_at, until + ttl_ms * interval '1 millisecond');
    update lease l set expires_at = until where l.scope = of_scope;
end $$;

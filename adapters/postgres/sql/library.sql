-- name: select_events
-- One stream, oldest first.
select stream, version, type, body from event
 where stream = %(stream)s and version > coalesce(%(gt)s::bigint, -1)
   and version <= coalesce(%(lte)s::bigint, 9223372036854775807)
 order by version limit %(limit)s::bigint

-- name: select_events_desc
-- One stream, newest first.
select stream, version, type, body from event
 where stream = %(stream)s and version > coalesce(%(gt)s::bigint, -1)
   and version <= coalesce(%(lte)s::bigint, 9223372036854775807)
 order by version desc limit %(limit)s::bigint

-- name: select_notifications
-- The log between two positions, both included, or only some types of it.
select position, stream, version, type, body from event
 where position >= %(first)s and position <= coalesce(%(last)s::bigint, 9223372036854775807)
   and (%(types)s::text[] is null or type = any(%(types)s::text[]))
 order by position limit %(limit)s

-- name: max_notification_id
-- The last position, null for an empty log.
select max(position) from event

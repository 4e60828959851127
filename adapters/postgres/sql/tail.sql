-- name: listen
-- Hear of appends.
listen {channel}

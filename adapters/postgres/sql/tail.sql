-- name: listen
-- Hear of appends.
listen {channel}

-- name: unlisten
-- Hear of nothing any more: the connection goes back to others.
unlisten *

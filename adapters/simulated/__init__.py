"""Stand-ins that are part of the product: users try Turnkeeper with them."""

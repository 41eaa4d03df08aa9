"""The page at /: HTML, CSS and JavaScript without a build step, and the route that serves them."""

"""How is Ojster reached over HTTP? The binding of ojs-http-binding.md as an ASGI application."""

"""HTTP server: the Open Job Spec HTTP binding as an ASGI application.

Spec: ojs-http-binding
"""

"""The dashboard: a web page that shows everything and does everything, through the public API alone.

Its source is in ``dashboard/`` of the repository; what is built from it is in the folder ``assets`` here, and in the
wheel. ``ojster.server.dashboard_page`` serves it.
"""

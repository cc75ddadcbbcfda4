"""A shop with Django: a request enqueues a task, which runs in a worker.

python manage.py migrate
python manage.py runserver
python manage.py ojster worker
curl -X POST localhost:8000/orders/7
"""

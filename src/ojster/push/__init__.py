"""Push endpoints: functions to which servers send jobs, and whose answers acknowledge them.

Spec: ojs-serverless
"""

-- Steps that wait for an approval, and suspended jobs of workflows: lists of workflows show and filter them.
CREATE INDEX CONCURRENTLY nodes_blocked ON nodes (id) WHERE state = 'blocked';
CREATE INDEX CONCURRENTLY jobs_suspended ON jobs (node) WHERE state = 'pending' AND hold IS NOT NULL AND node IS NOT NULL;

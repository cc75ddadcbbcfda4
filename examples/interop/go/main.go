// The official Go SDK of Open Job Spec, unmodified, with an Ojster server.
//
//	interop features URL                         try each feature; print "ok NAME" or "FAIL NAME: reason"
//	interop enqueue URL QUEUE COUNT TYPE...      enqueue COUNT jobs of each type; print their ids
//	interop work URL QUEUE COUNT SECONDS [all]   run COUNT jobs, for at most SECONDS; with "all", take all types
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"reflect"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	ojs "github.com/openjobspec/ojs-go-sdk"
)

var types = []string{"go.greet", "interop.echo"}

// typed says which job types the worker has handlers for. The SDK does not, and would get jobs of every type.
type typed struct{}

func (typed) RoundTrip(request *http.Request) (*http.Response, error) {
	if strings.HasSuffix(request.URL.Path, "/workers/fetch") {
		body := map[string]any{}
		if err := json.NewDecoder(request.Body).Decode(&body); err != nil {
			return nil, err
		}
		body["job_types"] = types
		changed, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		request = request.Clone(request.Context())
		request.Body, request.ContentLength = io.NopCloser(bytes.NewReader(changed)), int64(len(changed))
	}
	return http.DefaultTransport.RoundTrip(request)
}

func newWorker(url string, queues []string, done func(), isTyped bool) *ojs.Worker {
	options := []ojs.WorkerOption{
		ojs.WithQueues(queues...),
		ojs.WithPollInterval(100 * time.Millisecond),
		ojs.WithHeartbeatInterval(time.Second),
	}
	if isTyped {
		options = append(options, ojs.WithWorkerHTTPClient(&http.Client{Transport: typed{}}))
	}
	worker := ojs.NewWorker(url, options...)
	worker.Register("go.greet", func(job ojs.JobContext) error {
		done()
		job.SetResult(map[string]any{"by": "go", "greeting": fmt.Sprintf("Hello, %s!", job.Job.Args["name"])})
		return nil
	})
	worker.Register("interop.echo", func(job ojs.JobContext) error {
		done()
		job.SetResult(map[string]any{"by": "go", "echo": job.Job.Args})
		return nil
	})
	if !isTyped {
		worker.Register("go.flaky", func(job ojs.JobContext) error {
			if job.Attempt == 1 {
				return errors.New("the first attempt fails")
			}
			job.SetResult(map[string]any{"by": "go", "attempt": job.Attempt})
			return nil
		})
	}
	return worker
}

func expect(found, expected any) error {
	if !reflect.DeepEqual(found, expected) {
		return fmt.Errorf("%v instead of %v", found, expected)
	}
	return nil
}

func jobEnds(ctx context.Context, client *ojs.Client, id string) (*ojs.Job, error) {
	for range 200 {
		job, err := client.GetJob(ctx, id)
		if err != nil || job.State.IsTerminal() {
			return job, err
		}
		time.Sleep(100 * time.Millisecond)
	}
	return nil, fmt.Errorf("job %s has not ended", id)
}

func workflowCompletes(ctx context.Context, client *ojs.Client, definition ojs.WorkflowDefinition, queue string) error {
	// A queue given for the workflow is that of its steps. The SDK ignores options of the jobs in groups and batches.
	workflow, err := client.CreateWorkflow(ctx, definition, ojs.WithQueue(queue))
	if err != nil {
		return err
	}
	for range 200 {
		found, err := client.GetWorkflow(ctx, workflow.ID)
		if err != nil {
			return err
		}
		if found.State != ojs.WorkflowStateRunning && found.State != ojs.WorkflowStatePending {
			return expect(found.State, ojs.WorkflowStateCompleted)
		}
		time.Sleep(100 * time.Millisecond)
	}
	return fmt.Errorf("workflow %s has not ended", workflow.ID)
}

type feature struct {
	name string
	try  func() error
}

func features(ctx context.Context, client *ojs.Client, url string) {
	queue := "go-features"
	inQueue := ojs.WithQueue(queue)
	step := func(text string) ojs.Step { return ojs.Step{Type: "interop.echo", Args: ojs.Args{"text": text}} }
	after := step("after")
	named := func(definition ojs.WorkflowDefinition, name string) ojs.WorkflowDefinition {
		definition.Name = name
		return definition
	}
	tries := []feature{
		{"health", func() error {
			health, err := client.Health(ctx)
			if err != nil {
				return err
			}
			return expect(health.Status, "ok")
		}},
		{"manifest", func() error {
			manifest, err := client.Manifest(ctx)
			if err != nil {
				return err
			}
			return expect(manifest.Capabilities["workflows"], true)
		}},
		{"enqueue", func() error {
			job, err := client.Enqueue(ctx, "interop.echo", ojs.Args{"text": "plain"}, inQueue)
			if err != nil {
				return err
			}
			found, err := client.GetJob(ctx, job.ID)
			if err != nil {
				return err
			}
			return expect(found.Args, ojs.Args{"text": "plain"})
		}},
		{"options", func() error {
			job, err := client.Enqueue(ctx, "interop.echo", ojs.Args{"text": "options"}, inQueue,
				ojs.WithPriority(5), ojs.WithTags("red"), ojs.WithMeta(map[string]any{"trace": "t1"}),
				ojs.WithTimeout(5*time.Second), ojs.WithRetry(ojs.RetryPolicy{MaxAttempts: 7}))
			if err != nil {
				return err
			}
			found, err := client.GetJob(ctx, job.ID)
			if err != nil {
				return err
			}
			shown := []any{found.Queue, found.Priority, found.Tags, found.Meta["trace"], found.MaxAttempts}
			return expect(shown, []any{queue, 5, []string{"red"}, "t1", 7})
		}},
		{"delay", func() error {
			job, err := client.Enqueue(ctx, "interop.echo", ojs.Args{"text": "later"}, inQueue, ojs.WithDelay(time.Hour))
			if err != nil {
				return err
			}
			return expect(job.State, ojs.JobStateScheduled)
		}},
		{"unique", func() error {
			options := []ojs.EnqueueOption{ojs.WithQueue("go-unique"), ojs.WithUnique(ojs.UniquePolicy{
				Key: []string{"type", "queue", "args"}, Period: time.Hour, OnConflict: "reject"})}
			if _, err := client.Enqueue(ctx, "interop.echo", ojs.Args{"text": "once"}, options...); err != nil {
				return err
			}
			_, err := client.Enqueue(ctx, "interop.echo", ojs.Args{"text": "once"}, options...)
			if !errors.Is(err, ojs.ErrDuplicate) {
				return fmt.Errorf("%v instead of ErrDuplicate", err)
			}
			return nil
		}},
		{"batch-enqueue", func() error {
			one := ojs.JobRequest{Type: "interop.echo", Args: ojs.Args{"text": "one"}, Options: []ojs.EnqueueOption{inQueue}}
			jobs, err := client.EnqueueBatch(ctx, []ojs.JobRequest{one, one})
			if err != nil {
				return err
			}
			return expect(len(jobs), 2)
		}},
		{"cancel", func() error {
			job, err := client.Enqueue(ctx, "interop.echo", ojs.Args{"text": "cancel"}, ojs.WithQueue("go-cancel"))
			if err != nil {
				return err
			}
			cancelled, err := client.CancelJob(ctx, job.ID)
			if err != nil {
				return err
			}
			return expect(cancelled.State, ojs.JobStateCancelled)
		}},
		{"queues", func() error {
			queues, _, err := client.ListQueues(ctx)
			if err != nil {
				return err
			}
			return expect(len(queues) > 0, true)
		}},
		{"queue-stats", func() error {
			stats, err := client.GetQueueStats(ctx, "go-unique")
			if err != nil {
				return err
			}
			return expect(stats.Available, 1)
		}},
		{"pause", func() error {
			return errors.Join(client.PauseQueue(ctx, "go-unique"), client.ResumeQueue(ctx, "go-unique"))
		}},
		{"dead-letter", func() error {
			_, _, err := client.ListDeadLetterJobs(ctx, "", 10, 0)
			return err
		}},
		{"cron", func() error {
			job, err := client.RegisterCronJob(ctx, ojs.CronJobRequest{
				Name: "go-cron", Cron: "0 3 * * *", Type: "interop.echo", Args: ojs.Args{"text": "cron"}})
			if err != nil {
				return err
			}
			if _, err := client.ListCronJobs(ctx); err != nil {
				return err
			}
			return errors.Join(expect(job.Name, "go-cron"), client.UnregisterCronJob(ctx, "go-cron"))
		}},
		{"worker", func() error {
			job, err := client.Enqueue(ctx, "go.greet", ojs.Args{"name": "Ada"}, inQueue)
			if err != nil {
				return err
			}
			found, err := jobEnds(ctx, client, job.ID)
			if err != nil {
				return err
			}
			return expect(found.Result, map[string]any{"by": "go", "greeting": "Hello, Ada!"})
		}},
		{"retry", func() error {
			noJitter := false
			job, err := client.Enqueue(ctx, "go.flaky", nil, inQueue, ojs.WithRetry(ojs.RetryPolicy{
				MaxAttempts: 3, InitialInterval: 100 * time.Millisecond, Jitter: &noJitter}))
			if err != nil {
				return err
			}
			found, err := jobEnds(ctx, client, job.ID)
			if err != nil {
				return err
			}
			return expect(found.Result, map[string]any{"by": "go", "attempt": 2.0})
		}},
		{"chain", func() error {
			return workflowCompletes(ctx, client, named(ojs.Chain(step("one"), step("two")), "chain"), queue)
		}},
		{"group", func() error {
			return workflowCompletes(ctx, client, named(ojs.Group(step("one"), step("two")), "group"), queue)
		}},
		{"batch", func() error {
			callbacks := ojs.BatchCallbacks{OnSuccess: &after}
			return workflowCompletes(ctx, client, named(ojs.Batch(callbacks, step("one"), step("two")), "batch"), queue)
		}},
	}

	running, stop := context.WithCancel(ctx)
	defer stop()
	go func() { _ = newWorker(url, []string{queue}, func() {}, false).Start(running) }()
	for _, one := range tries {
		if err := one.try(); err != nil {
			fmt.Printf("FAIL %s: %s\n", one.name, strings.SplitN(err.Error(), "\n", 2)[0])
		} else {
			fmt.Printf("ok %s\n", one.name)
		}
	}
}

func enqueue(ctx context.Context, client *ojs.Client, queue string, count int, types []string) error {
	for number := range count {
		for _, one := range types {
			args := ojs.Args{"name": "Ada", "text": fmt.Sprintf("go %d", number)}
			job, err := client.Enqueue(ctx, one, args, ojs.WithQueue(queue))
			if err != nil {
				return err
			}
			fmt.Println(job.ID)
		}
	}
	return nil
}

func work(ctx context.Context, url, queue string, count, seconds int, isTyped bool) error {
	// The SDK reports results with the context of Start: wait for them before it is cancelled.
	running, stop := context.WithTimeout(ctx, time.Duration(seconds)*time.Second)
	defer stop()
	var handled atomic.Int64
	worker := newWorker(url, []string{queue}, func() {
		if handled.Add(1) == int64(count) {
			time.AfterFunc(500*time.Millisecond, stop)
		}
	}, isTyped)
	return worker.Start(running)
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	arguments := append(os.Args[1:], "", "", "", "")
	command, url, queue := arguments[0], arguments[1], arguments[2]
	count, _ := strconv.Atoi(arguments[3])
	client, err := ojs.NewClient(url)
	if err == nil {
		switch command {
		case "features":
			features(ctx, client, url)
		case "enqueue":
			err = enqueue(ctx, client, queue, count, os.Args[5:])
		case "work":
			seconds, _ := strconv.Atoi(arguments[4])
			err = work(ctx, url, queue, count, seconds, arguments[5] != "all")
		default:
			err = errors.New("give features, enqueue or work")
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// River on PostgreSQL, with the fetch settings of its own benchmark command.
package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"math"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

const (
	warmUp      = 500  // jobs enqueued before the time is taken
	batch       = 1000 // jobs per bulk call
	connections = 20
)

type Add struct {
	A int `json:"a"`
	B int `json:"b"`
}

func (Add) Kind() string { return "add" }

type Probe struct {
	At float64 `json:"at"`
}

func (Probe) Kind() string { return "probe" }

var done atomic.Int64

func now() float64 { return float64(time.Now().UnixNano()) / 1e9 }

func add(context.Context, *river.Job[Add]) error {
	done.Add(1)
	return nil
}

func probe(_ context.Context, job *river.Job[Probe]) error {
	latency := now() - job.Args.At
	file, err := os.OpenFile(path("latencies"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	return binary.Write(file, binary.LittleEndian, math.Float64bits(latency))
}

func path(name string) string { return filepath.Join(os.Getenv("PEERS_FOLDER"), name) }

// count writes the number of jobs done to the slot of this process, every 2 ms.
func count() {
	file := must(os.OpenFile(path("count"), os.O_RDWR, 0))
	slot := must(strconv.ParseInt(os.Getenv("PEERS_SLOT"), 10, 64))
	for written := int64(0); ; time.Sleep(2 * time.Millisecond) {
		if current := done.Load(); current != written {
			written = current
			must(file.WriteAt(binary.LittleEndian.AppendUint64(nil, uint64(current)), 8*(1+slot)))
		}
	}
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func main() {
	ctx := context.Background()
	config := must(pgxpool.ParseConfig(os.Getenv("PEERS_POSTGRES")))
	config.MaxConns = connections
	pool := must(pgxpool.NewWithConfig(ctx, config))
	switch os.Args[1] {
	case "clear":
		migrator := must(rivermigrate.New(riverpgxv5.New(pool), nil))
		must(migrator.Migrate(ctx, rivermigrate.DirectionUp, nil))
		must(pool.Exec(ctx, "TRUNCATE river_job"))
	case "enqueue":
		client := newClient(pool, 0)
		enqueue(ctx, client, warmUp, number(3))
		started := time.Now()
		enqueue(ctx, client, number(2), number(3))
		fmt.Println(time.Since(started).Seconds())
	case "bulk":
		client := newClient(pool, 0)
		bulk(ctx, client, warmUp)
		started := time.Now()
		bulk(ctx, client, number(2))
		fmt.Println(time.Since(started).Seconds())
	case "probe":
		client := newClient(pool, 0)
		for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
			must(client.Insert(ctx, Probe{At: now()}, nil))
		}
	case "work":
		go count()
		if err := newClient(pool, number(2)).Start(ctx); err != nil {
			panic(err)
		}
		stopped := make(chan os.Signal, 1)
		signal.Notify(stopped, syscall.SIGTERM)
		<-stopped
	}
}

func number(place int) int { return must(strconv.Atoi(os.Args[place])) }

func newClient(pool *pgxpool.Pool, maxWorkers int) *river.Client[pgx.Tx] {
	config := &river.Config{
		FetchCooldown:     2 * time.Millisecond,
		FetchPollInterval: 20 * time.Millisecond,
		Logger:            slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError})),
	}
	if maxWorkers > 0 {
		config.Workers = river.NewWorkers()
		river.AddWorker(config.Workers, river.WorkFunc(add))
		river.AddWorker(config.Workers, river.WorkFunc(probe))
		config.Queues = map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: maxWorkers}}
	}
	return must(river.NewClient(riverpgxv5.New(pool), config))
}

func enqueue(ctx context.Context, client *river.Client[pgx.Tx], total, producers int) {
	var left atomic.Int64
	var group sync.WaitGroup
	left.Store(int64(total))
	for range producers {
		group.Add(1)
		go func() {
			defer group.Done()
			for left.Add(-1) >= 0 {
				must(client.Insert(ctx, Add{A: 1, B: 2}, nil))
			}
		}()
	}
	group.Wait()
}

func bulk(ctx context.Context, client *river.Client[pgx.Tx], total int) {
	for left := total; left > 0; left -= batch {
		jobs := make([]river.InsertManyParams, min(left, batch))
		for index := range jobs {
			jobs[index] = river.InsertManyParams{Args: Add{A: 1, B: 2}}
		}
		must(client.InsertManyFast(ctx, jobs))
	}
}

// What clients in Go do to a broker: franz-go, sarama and kafka-go, each by its own means.
//
// Arguments: the bootstrap server; for a listener with SASL and TLS, franz-go alone, also the file of the authority, the
// user and the password. One line per check, in three parts with tabs between: "ok" or "FAILED", the
// client with its version and the check, why it failed.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"strings"
	"time"

	"github.com/IBM/sarama"
	"github.com/segmentio/kafka-go"
)

const limit = 120 * time.Second

// A client under test. Topics have two partitions; records are numbers as text, spread over both.
type client interface {
	create(ctx context.Context, topic string) error
	// produce sends the numbers from start to end, compressed by one of the codecs.
	produce(ctx context.Context, topic, codec string, start, end int) error
	// consume joins the group, reads so many records, commits them, and leaves. A group without a committed offset, or
	// with one that is out of range, begins at the start or at the end.
	consume(ctx context.Context, topic, group string, count int, fromStart bool) ([]string, error)
	// commitEnd commits the end of both partitions for a group without members.
	commitEnd(ctx context.Context, topic, group string) error
	// share has two members in the group at once, until each has a partition; it returns how many each got.
	share(ctx context.Context, topic, group string) ([]int, error)
	committed(ctx context.Context, topic, group string) (partitions int, err error)
	remove(ctx context.Context, topic string) error
}

// A subject is a client with its name in the output.
type subject struct {
	name, module string
	client       client
	own          []check // that no other client can pass
}

type check struct {
	name string
	run  func(ctx context.Context, client client, topic string) error
}

var codecs = []string{"none", "gzip", "snappy", "lz4", "zstd"}

var checks = []check{
	{"create a topic", func(ctx context.Context, client client, topic string) error {
		return client.create(ctx, topic)
	}},
	{"produce with every codec", func(ctx context.Context, client client, topic string) error {
		for number, codec := range codecs {
			if err := client.produce(ctx, topic, codec, number*100, number*100+100); err != nil {
				return fmt.Errorf("%s: %w", codec, err)
			}
		}
		return nil
	}},
	{"consume in a group, and commit", func(ctx context.Context, client client, topic string) error {
		return expect(ctx, client, topic, 0, 500, true)
	}},
	{"committed offset is read back", func(ctx context.Context, client client, topic string) error {
		partitions, err := client.committed(ctx, topic, topic)
		if err == nil && partitions != 2 {
			err = fmt.Errorf("%d partitions have an offset", partitions)
		}
		return err
	}},
	{"resume where the group stopped", func(ctx context.Context, client client, topic string) error {
		if err := client.produce(ctx, topic, "none", 500, 600); err != nil {
			return err
		}
		return expect(ctx, client, topic, 500, 600, false)
	}},
	{"resume at the end of an empty topic", func(ctx context.Context, client client, topic string) error {
		empty := topic + "-empty"
		if err := client.create(ctx, empty); err != nil {
			return err
		}
		if err := commitEndOfNew(ctx, client, empty); err != nil {
			return err
		}
		if err := client.produce(ctx, empty, "none", 0, 100); err != nil {
			return err
		}
		return expect(ctx, client, empty, 0, 100, false)
	}},
	{"two members share", func(ctx context.Context, client client, topic string) error {
		shares, err := client.share(ctx, topic, topic+"-shared")
		if err == nil && (len(shares) != 2 || shares[0] != 1 || shares[1] != 1) {
			err = fmt.Errorf("they have %v partitions", shares)
		}
		return err
	}},
	{"delete the topic", func(ctx context.Context, client client, topic string) error {
		return client.remove(ctx, topic)
	}},
}

// newProtocols are the checks of groups whose broker assigns (KIP-848) and of queues (KIP-932).
var newProtocols = []check{
	{"a group moves to the consumer protocol and back", func(ctx context.Context, client client, topic string) error {
		return client.(*franz).migrate(ctx, topic+"-moved")
	}},
	{"two workers share a queue", func(ctx context.Context, client client, topic string) error {
		return client.(*franz).work(ctx, topic+"-queue")
	}},
}

// commitEndOfNew commits the ends of a topic that was just created. The metadata may name a leader that does not lead yet;
// these clients do not repeat what it refuses.
func commitEndOfNew(ctx context.Context, client client, topic string) error {
	for {
		err := client.commitEnd(ctx, topic, topic)
		if !errors.Is(err, kafka.NotLeaderForPartition) && !errors.Is(err, sarama.ErrNotLeaderForPartition) {
			return err
		}
		select {
		case <-ctx.Done():
			return errors.Join(err, ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// expect reads in the group named like the topic, and compares with the numbers from start to end.
func expect(ctx context.Context, client client, topic string, start, end int, fromStart bool) error {
	values, err := client.consume(ctx, topic, topic, end-start, fromStart)
	if err != nil {
		return err
	}
	seen := map[string]int{}
	for _, value := range values {
		seen[value]++
	}
	for number := start; number < end; number++ {
		if seen[fmt.Sprint(number)] != 1 {
			return fmt.Errorf("%d came %d times", number, seen[fmt.Sprint(number)])
		}
	}
	if len(values) != end-start {
		return fmt.Errorf("%d records came instead of %d", len(values), end-start)
	}
	return nil
}

func main() {
	broker := os.Args[1]
	subjects := []subject{
		{"franz-go", franzModule, &franz{broker: broker}, newProtocols},
		{"sarama", "github.com/IBM/sarama", &shopify{broker}, nil},
		{"kafka-go", "github.com/segmentio/kafka-go", &segment{broker}, nil},
	}
	if len(os.Args) == 5 {
		var err error
		if subjects, err = loggedIn(broker, os.Args[2], os.Args[3], os.Args[4]); err != nil {
			panic(err)
		}
	}
	failures := 0
	for _, each := range subjects {
		topic := each.name + "-" + fmt.Sprint(time.Now().UnixMilli())
		for _, check := range append(checks, each.own...) {
			ctx, cancel := context.WithTimeout(context.Background(), limit)
			err := check.run(ctx, each.client, topic)
			cancel()
			state, why := "ok", ""
			if err != nil {
				state, why = "FAILED", strings.Join(strings.Fields(err.Error()), " ")
				failures++
			}
			fmt.Printf("%s\t%s %s, %s\t%s\n", state, each.name, version(each.module), check.name, why)
		}
	}
	os.Exit(failures)
}

// version is the one that go.mod names.
func version(module string) string {
	information, _ := debug.ReadBuildInfo()
	for _, dependency := range information.Deps {
		if dependency.Path == module {
			return dependency.Version
		}
	}
	return "?"
}

// A copier of franz-go: it copies a topic to another in transactions, with the offsets of its group in them.
//
// Arguments: the bootstrap server, the name of the group and the transactional id, the two topics, the records of a
// transaction. It prints "ready" when it has initialized the transactional id, and copies until it is killed.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

func main() {
	name, read, written := os.Args[2], os.Args[3], os.Args[4]
	most, err := strconv.Atoi(os.Args[5])
	check(err)
	ctx := context.Background()
	session, err := kgo.NewGroupTransactSession(
		kgo.SeedBrokers(os.Args[1]),
		kgo.TransactionalID(name),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ConsumerGroup(name),
		kgo.ConsumeTopics(read),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.RequireStableFetchOffsets(),
		kgo.SessionTimeout(2*time.Second),
		kgo.HeartbeatInterval(300*time.Millisecond),
	)
	check(err)
	_, _, err = session.Client().ProducerID(ctx)
	check(err)
	fmt.Println("ready")
	for {
		fetches := session.PollRecords(ctx, most)
		check(fetches.Err())
		if fetches.NumRecords() == 0 {
			continue
		}
		check(session.Begin())
		fetches.EachRecord(func(record *kgo.Record) {
			copied := &kgo.Record{Topic: written, Partition: record.Partition, Value: record.Value}
			session.Produce(ctx, copied, func(_ *kgo.Record, err error) { check(err) })
		})
		_, err = session.End(ctx, kgo.TryCommit) // it aborts after a rebalance, and reads again what it has not committed
		check(err)
	}
}

func check(err error) {
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

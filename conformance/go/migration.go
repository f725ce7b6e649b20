package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	movedPartitions = 6
	movedRecords    = 60
	movedReaders    = 3
)

// A migration is a group whose consumers change their protocol one after another, while records arrive.
type migration struct {
	franz *franz
	topic string

	mutex    sync.Mutex
	owners   map[int32]*reader
	read     map[string]int
	unstored map[string]bool // values whose offsets were not committed
	faults   []string
	produced int
}

// A reader is a consumer of the group. It commits what it has read before it reads on.
type reader struct {
	client *kgo.Client
	done   chan struct{}
	end    context.CancelFunc
}

// migrate moves a group from the classic protocol to that of KIP-848 and back.
func (franz *franz) migrate(ctx context.Context, topic string) error {
	moving := &migration{
		franz: franz, topic: topic, owners: map[int32]*reader{}, read: map[string]int{}, unstored: map[string]bool{},
	}
	client, err := franz.open()
	if err != nil {
		return err
	}
	defer client.Close()
	if _, err := kadm.NewClient(client).CreateTopic(ctx, movedPartitions, 1, nil, topic); err != nil {
		return err
	}
	classic := []kgo.Opt{kgo.Balancers(kgo.CooperativeStickyBalancer())}
	consumer := []kgo.Opt{kgo.ServerSideBalancer(), kgo.Balancers(kgo.StickyBalancer())}
	var readers []*reader
	defer func() {
		for _, each := range readers {
			each.close()
		}
	}()
	for number := range movedReaders {
		opened, err := moving.open(ctx, classic)
		if err != nil {
			return err
		}
		readers = append(readers, opened)
		if number == movedReaders-1 {
			if err := moving.settle(ctx, client, "classic"); err != nil {
				return err
			}
		}
	}
	for number := range 2 * movedReaders {
		readers[0].close()
		readers = readers[1:]
		if err := moving.produce(ctx); err != nil {
			return err
		}
		options, kind := consumer, "consumer"
		if number >= movedReaders {
			options = classic
		}
		if number == 2*movedReaders-1 {
			kind = "classic"
		}
		opened, err := moving.open(ctx, options)
		if err != nil {
			return err
		}
		readers = append(readers, opened)
		if err := moving.settle(ctx, client, kind); err != nil {
			return err
		}
	}
	return moving.fault()
}

func (moving *migration) open(ctx context.Context, kind []kgo.Opt) (*reader, error) {
	opened := &reader{done: make(chan struct{})}
	ctx, opened.end = context.WithCancel(ctx)
	client, err := moving.franz.open(append(kind,
		kgo.ConsumerGroup(moving.topic), kgo.ConsumeTopics(moving.topic), kgo.DisableAutoCommit(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.HeartbeatInterval(300*time.Millisecond),
		kgo.BlockRebalanceOnPoll(),
		kgo.OnPartitionsAssigned(func(_ context.Context, _ *kgo.Client, partitions map[string][]int32) {
			moving.own(opened, partitions[moving.topic])
		}),
		kgo.OnPartitionsRevoked(func(_ context.Context, _ *kgo.Client, partitions map[string][]int32) {
			moving.giveUp(opened, partitions[moving.topic])
		}),
		kgo.OnPartitionsLost(func(_ context.Context, _ *kgo.Client, partitions map[string][]int32) {
			moving.giveUp(opened, partitions[moving.topic])
		}),
	)...)
	if err != nil {
		return nil, err
	}
	opened.client = client
	go func() {
		defer close(opened.done)
		for ctx.Err() == nil {
			fetches := client.PollRecords(ctx, 5)
			moving.note(fetches.Records(), client.CommitRecords(context.Background(), fetches.Records()...))
			client.AllowRebalance()
		}
	}()
	return opened, nil
}

func (opened *reader) close() {
	opened.end()
	<-opened.done
	opened.client.Close()
}

func (moving *migration) own(owner *reader, partitions []int32) {
	moving.mutex.Lock()
	defer moving.mutex.Unlock()
	for _, partition := range partitions {
		if moving.owners[partition] != nil {
			moving.faults = append(moving.faults, fmt.Sprintf("partition %d has two owners", partition))
		}
		moving.owners[partition] = owner
	}
}

func (moving *migration) giveUp(owner *reader, partitions []int32) {
	moving.mutex.Lock()
	defer moving.mutex.Unlock()
	for _, partition := range partitions {
		if moving.owners[partition] == owner {
			delete(moving.owners, partition)
		}
	}
}

func (moving *migration) note(records []*kgo.Record, err error) {
	moving.mutex.Lock()
	defer moving.mutex.Unlock()
	for _, record := range records {
		moving.read[string(record.Value)]++
		if err != nil {
			moving.unstored[string(record.Value)] = true
		}
	}
}

func (moving *migration) produce(ctx context.Context) error {
	client, err := moving.franz.open(kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		return err
	}
	defer client.Close()
	var records []*kgo.Record
	for number := moving.produced; number < moving.produced+movedRecords; number++ {
		records = append(records, &kgo.Record{
			Topic: moving.topic, Partition: int32(number % movedPartitions), Value: []byte(fmt.Sprint(number)),
		})
	}
	if err := client.ProduceSync(ctx, records...).FirstErr(); err != nil {
		return err
	}
	moving.produced += movedRecords
	return eventually(ctx, fmt.Sprintf("%d records are read", moving.produced), func() bool {
		moving.mutex.Lock()
		defer moving.mutex.Unlock()
		return len(moving.read) == moving.produced
	})
}

// settle waits until the group is of this kind and owns all partitions, and lets it read some records.
func (moving *migration) settle(ctx context.Context, client *kgo.Client, kind string) error {
	err := eventually(ctx, "the group is "+kind, func() bool {
		found, err := groupOf(ctx, client, moving.topic)
		moving.mutex.Lock()
		defer moving.mutex.Unlock()
		return err == nil && found.GroupType == kind && found.GroupState == "Stable" &&
			len(moving.owners) == movedPartitions
	})
	if err != nil {
		return err
	}
	return moving.produce(ctx)
}

func (moving *migration) fault() error {
	moving.mutex.Lock()
	defer moving.mutex.Unlock()
	if len(moving.faults) > 0 {
		return fmt.Errorf("%v", moving.faults)
	}
	for value, times := range moving.read {
		if times > 1 && !moving.unstored[value] {
			return fmt.Errorf("%s was committed, and came %d times", value, times)
		}
	}
	return nil
}

func groupOf(ctx context.Context, client *kgo.Client, group string) (kmsg.ListGroupsResponseGroup, error) {
	response, err := kmsg.NewPtrListGroupsRequest().RequestWith(ctx, client)
	if err != nil {
		return kmsg.ListGroupsResponseGroup{}, err
	}
	for _, found := range response.Groups {
		if found.Group == group {
			return found, nil
		}
	}
	return kmsg.ListGroupsResponseGroup{}, fmt.Errorf("there is no group %s", group)
}

func eventually(ctx context.Context, what string, holds func() bool) error {
	for !holds() {
		select {
		case <-ctx.Done():
			return fmt.Errorf("not in time: %s", what)
		case <-time.After(20 * time.Millisecond):
		}
	}
	return nil
}

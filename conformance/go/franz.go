package main

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

const franzModule = "github.com/twmb/franz-go"

type franz struct {
	broker   string
	security []kgo.Opt
}

func (franz *franz) open(options ...kgo.Opt) (*kgo.Client, error) {
	return kgo.NewClient(append(append(options, franz.security...), kgo.SeedBrokers(franz.broker))...)
}

func (franz *franz) admin(use func(*kadm.Client) error) error {
	client, err := franz.open()
	if err != nil {
		return err
	}
	defer client.Close()
	return use(kadm.NewClient(client))
}

func (franz *franz) create(ctx context.Context, topic string) error {
	return franz.admin(func(admin *kadm.Client) error {
		_, err := admin.CreateTopic(ctx, 2, 1, nil, topic)
		return err
	})
}

func (franz *franz) remove(ctx context.Context, topic string) error {
	return franz.admin(func(admin *kadm.Client) error {
		_, err := admin.DeleteTopic(ctx, topic)
		return err
	})
}

func (franz *franz) produce(ctx context.Context, topic, codec string, start, end int) error {
	compression := map[string]kgo.CompressionCodec{
		"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
		"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
	}
	client, err := franz.open(
		kgo.ProducerBatchCompression(compression[codec]), kgo.RecordPartitioner(kgo.ManualPartitioner()),
	)
	if err != nil {
		return err
	}
	defer client.Close()
	var records []*kgo.Record
	for number := start; number < end; number++ {
		value := []byte(fmt.Sprint(number))
		records = append(records, &kgo.Record{Topic: topic, Partition: int32(number % 2), Key: value, Value: value})
	}
	return client.ProduceSync(ctx, records...).FirstErr()
}

func (franz *franz) consume(ctx context.Context, topic, group string, count int, fromStart bool) ([]string, error) {
	reset := kgo.NewOffset().AtEnd()
	if fromStart {
		reset = kgo.NewOffset().AtStart()
	}
	client, err := franz.open(
		kgo.ConsumerGroup(group), kgo.ConsumeTopics(topic), kgo.DisableAutoCommit(), kgo.ConsumeResetOffset(reset),
	)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	var values []string
	for len(values) < count {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return values, fmt.Errorf("after %d records: %w", len(values), err)
		}
		fetches.EachRecord(func(record *kgo.Record) { values = append(values, string(record.Value)) })
	}
	return values, client.CommitUncommittedOffsets(ctx)
}

func (franz *franz) commitEnd(ctx context.Context, topic, group string) error {
	return franz.admin(func(admin *kadm.Client) error {
		ends, err := admin.ListEndOffsets(ctx, topic)
		if err != nil {
			return err
		}
		return admin.CommitAllOffsets(ctx, group, ends.Offsets())
	})
}

func (franz *franz) share(ctx context.Context, topic, group string) ([]int, error) {
	held := make([]atomic.Int32, 2)
	for member := range held {
		client, err := franz.open(
			kgo.ConsumerGroup(group), kgo.ConsumeTopics(topic),
			kgo.OnPartitionsAssigned(func(_ context.Context, _ *kgo.Client, partitions map[string][]int32) {
				held[member].Add(int32(len(partitions[topic])))
			}),
			kgo.OnPartitionsRevoked(func(_ context.Context, _ *kgo.Client, partitions map[string][]int32) {
				held[member].Add(-int32(len(partitions[topic])))
			}),
		)
		if err != nil {
			return nil, err
		}
		defer client.Close()
		go func() {
			for ctx.Err() == nil && !client.PollFetches(ctx).IsClientClosed() {
			}
		}()
	}
	return settled(ctx, held)
}

func (franz *franz) committed(ctx context.Context, topic, group string) (partitions int, err error) {
	err = franz.admin(func(admin *kadm.Client) error {
		offsets, err := admin.FetchOffsets(ctx, group)
		partitions = len(offsets[topic])
		return err
	})
	return partitions, err
}

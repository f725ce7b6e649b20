package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/segmentio/kafka-go"
)

type segment struct{ broker string }

func (segment *segment) client() *kafka.Client {
	return &kafka.Client{Addr: kafka.TCP(segment.broker), Timeout: 30 * time.Second}
}

func (segment *segment) create(ctx context.Context, topic string) error {
	answer, err := segment.client().CreateTopics(ctx, &kafka.CreateTopicsRequest{
		Topics: []kafka.TopicConfig{{Topic: topic, NumPartitions: 2, ReplicationFactor: 1}},
	})
	if err != nil {
		return err
	}
	return answer.Errors[topic]
}

func (segment *segment) remove(ctx context.Context, topic string) error {
	answer, err := segment.client().DeleteTopics(ctx, &kafka.DeleteTopicsRequest{Topics: []string{topic}})
	if err != nil {
		return err
	}
	return answer.Errors[topic]
}

func (segment *segment) produce(ctx context.Context, topic, codec string, start, end int) error {
	compression := map[string]kafka.Compression{
		"gzip": kafka.Gzip, "snappy": kafka.Snappy, "lz4": kafka.Lz4, "zstd": kafka.Zstd,
	}
	writer := &kafka.Writer{
		Addr: kafka.TCP(segment.broker), Topic: topic, Balancer: &kafka.RoundRobin{}, Compression: compression[codec],
		RequiredAcks: kafka.RequireAll, BatchTimeout: 10 * time.Millisecond,
	}
	var messages []kafka.Message
	for number := start; number < end; number++ {
		value := []byte(fmt.Sprint(number))
		messages = append(messages, kafka.Message{Key: value, Value: value})
	}
	return errors.Join(writer.WriteMessages(ctx, messages...), writer.Close())
}

func (segment *segment) reader(topic, group string, fromStart bool) *kafka.Reader {
	start := kafka.LastOffset
	if fromStart {
		start = kafka.FirstOffset
	}
	return kafka.NewReader(kafka.ReaderConfig{
		Brokers: []string{segment.broker}, GroupID: group, Topic: topic, StartOffset: start,
		MaxWait: 500 * time.Millisecond,
	})
}

func (segment *segment) consume(ctx context.Context, topic, group string, count int, fromStart bool) ([]string, error) {
	reader := segment.reader(topic, group, fromStart)
	var values []string
	for len(values) < count {
		message, err := reader.FetchMessage(ctx)
		if err != nil {
			return values, errors.Join(fmt.Errorf("after %d records: %w", len(values), err), reader.Close())
		}
		values = append(values, string(message.Value))
		if err := reader.CommitMessages(ctx, message); err != nil {
			return values, errors.Join(err, reader.Close())
		}
	}
	return values, reader.Close()
}

func (segment *segment) commitEnd(ctx context.Context, topic, group string) error {
	ends, err := segment.client().ListOffsets(ctx, &kafka.ListOffsetsRequest{
		Topics: map[string][]kafka.OffsetRequest{topic: {kafka.LastOffsetOf(0), kafka.LastOffsetOf(1)}},
	})
	if err != nil {
		return err
	}
	var commits []kafka.OffsetCommit
	for _, end := range ends.Topics[topic] {
		if end.Error != nil {
			return end.Error
		}
		commits = append(commits, kafka.OffsetCommit{Partition: end.Partition, Offset: end.LastOffset})
	}
	answer, err := segment.client().OffsetCommit(ctx, &kafka.OffsetCommitRequest{
		GroupID: group, GenerationID: -1, Topics: map[string][]kafka.OffsetCommit{topic: commits},
	})
	if err != nil {
		return err
	}
	for _, partition := range answer.Topics[topic] {
		if partition.Error != nil {
			return partition.Error
		}
	}
	return nil
}

func (segment *segment) share(ctx context.Context, topic, group string) ([]int, error) {
	held := make([]atomic.Int32, 2)
	for member := range held {
		consumers, err := kafka.NewConsumerGroup(kafka.ConsumerGroupConfig{
			ID: group, Brokers: []string{segment.broker}, Topics: []string{topic},
		})
		if err != nil {
			return nil, err
		}
		defer func() { _ = consumers.Close() }()
		go func() {
			for {
				generation, err := consumers.Next(ctx)
				if errors.Is(err, kafka.ErrGroupClosed) || ctx.Err() != nil {
					return
				}
				if err != nil { // such as a rebalance that came before the assignment: it joins again by itself
					continue
				}
				held[member].Store(int32(len(generation.Assignments[topic])))
				generation.Start(func(ctx context.Context) { <-ctx.Done() })
			}
		}()
	}
	return settled(ctx, held)
}

func (segment *segment) committed(ctx context.Context, topic, group string) (int, error) {
	answer, err := segment.client().OffsetFetch(ctx, &kafka.OffsetFetchRequest{
		GroupID: group, Topics: map[string][]int{topic: {0, 1}},
	})
	if err != nil {
		return 0, err
	}
	partitions := 0
	for _, partition := range answer.Topics[topic] {
		if partition.Error == nil && partition.CommittedOffset >= 0 {
			partitions++
		}
	}
	return partitions, answer.Error
}

// settled waits until each of two members has one partition; what they have when time is up otherwise.
func settled(ctx context.Context, held []atomic.Int32) ([]int, error) {
	for {
		shares := []int{int(held[0].Load()), int(held[1].Load())}
		if shares[0] == 1 && shares[1] == 1 {
			return shares, nil
		}
		select {
		case <-ctx.Done():
			return shares, nil
		case <-time.After(20 * time.Millisecond):
		}
	}
}

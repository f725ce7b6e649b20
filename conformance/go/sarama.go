package main

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/IBM/sarama"
)

type shopify struct{ broker string }

func configured() *sarama.Config {
	config := sarama.NewConfig()
	config.Version = sarama.MaxVersion
	config.Producer.Return.Successes = true
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Idempotent = true
	config.Net.MaxOpenRequests = 1
	config.Producer.Partitioner = sarama.NewManualPartitioner
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Offsets.AutoCommit.Enable = false
	return config
}

func (client *shopify) admin(use func(sarama.ClusterAdmin) error) error {
	admin, err := sarama.NewClusterAdmin([]string{client.broker}, configured())
	if err != nil {
		return err
	}
	defer func() { _ = admin.Close() }()
	return use(admin)
}

func (client *shopify) create(_ context.Context, topic string) error {
	return client.admin(func(admin sarama.ClusterAdmin) error {
		return admin.CreateTopic(topic, &sarama.TopicDetail{NumPartitions: 2, ReplicationFactor: 1}, false)
	})
}

func (client *shopify) remove(_ context.Context, topic string) error {
	return client.admin(func(admin sarama.ClusterAdmin) error { return admin.DeleteTopic(topic) })
}

func (client *shopify) produce(_ context.Context, topic, codec string, start, end int) error {
	config := configured()
	if err := config.Producer.Compression.UnmarshalText([]byte(codec)); err != nil {
		return err
	}
	producer, err := sarama.NewSyncProducer([]string{client.broker}, config)
	if err != nil {
		return err
	}
	defer func() { _ = producer.Close() }()
	var messages []*sarama.ProducerMessage
	for number := start; number < end; number++ {
		value := sarama.StringEncoder(fmt.Sprint(number))
		messages = append(messages, &sarama.ProducerMessage{Topic: topic, Partition: int32(number % 2), Key: value, Value: value})
	}
	return producer.SendMessages(messages)
}

// A member takes values until it has enough, or just holds its partitions.
type member struct {
	wanted int
	held   *atomic.Int32
	enough context.CancelFunc
	mutex  sync.Mutex
	values []string
}

func (member *member) Setup(session sarama.ConsumerGroupSession) error {
	for _, partitions := range session.Claims() {
		member.held.Store(int32(len(partitions)))
	}
	return nil
}

func (member *member) Cleanup(sarama.ConsumerGroupSession) error {
	member.held.Store(0)
	return nil
}

func (member *member) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for message := range claim.Messages() {
		member.mutex.Lock()
		member.values = append(member.values, string(message.Value))
		session.MarkMessage(message, "")
		if len(member.values) == member.wanted {
			session.Commit()
			member.enough()
		}
		member.mutex.Unlock()
	}
	return nil
}

func (client *shopify) consume(ctx context.Context, topic, group string, count int, fromStart bool) ([]string, error) {
	config := configured()
	if !fromStart {
		config.Consumer.Offsets.Initial = sarama.OffsetNewest
	}
	consumers, err := sarama.NewConsumerGroup([]string{client.broker}, group, config)
	if err != nil {
		return nil, err
	}
	defer func() { _ = consumers.Close() }()
	inside, enough := context.WithCancel(ctx)
	defer enough()
	member := &member{wanted: count, held: &atomic.Int32{}, enough: enough}
	for inside.Err() == nil {
		if err := consumers.Consume(inside, []string{topic}, member); err != nil {
			return nil, err
		}
	}
	return member.values, ctx.Err()
}

func (client *shopify) commitEnd(_ context.Context, topic, group string) error {
	connected, err := sarama.NewClient([]string{client.broker}, configured())
	if err != nil {
		return err
	}
	defer func() { _ = connected.Close() }()
	manager, err := sarama.NewOffsetManagerFromClient(group, connected)
	if err != nil {
		return err
	}
	for partition := range int32(2) {
		end, err := connected.GetOffset(topic, partition, sarama.OffsetNewest)
		if err != nil {
			return err
		}
		managed, err := manager.ManagePartition(topic, partition)
		if err != nil {
			return err
		}
		managed.MarkOffset(end, "")
		managed.AsyncClose()
	}
	manager.Commit()
	return manager.Close()
}

func (client *shopify) share(ctx context.Context, topic, group string) ([]int, error) {
	held := make([]atomic.Int32, 2)
	for number := range held {
		consumers, err := sarama.NewConsumerGroup([]string{client.broker}, group, configured())
		if err != nil {
			return nil, err
		}
		defer func() { _ = consumers.Close() }()
		go func() {
			for ctx.Err() == nil {
				if err := consumers.Consume(ctx, []string{topic}, &member{held: &held[number]}); err != nil {
					return
				}
			}
		}()
	}
	return settled(ctx, held)
}

func (client *shopify) committed(_ context.Context, topic, group string) (partitions int, err error) {
	err = client.admin(func(admin sarama.ClusterAdmin) error {
		answer, err := admin.ListConsumerGroupOffsets(group, map[string][]int32{topic: {0, 1}})
		if err != nil {
			return err
		}
		for _, block := range answer.Blocks[topic] {
			if block.Err == sarama.ErrNoError && block.Offset >= 0 {
				partitions++
			}
		}
		return nil
	})
	return partitions, err
}

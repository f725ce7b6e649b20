package main

import (
	"context"
	"fmt"
	"sync"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const jobs = 200

// work has two workers share a queue (KIP-932): each accepts most records, releases some once, and rejects some.
func (franz *franz) work(ctx context.Context, topic string) error {
	client, err := franz.open(kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		return err
	}
	defer client.Close()
	if _, err := kadm.NewClient(client).CreateTopic(ctx, 2, 1, nil, topic); err != nil {
		return err
	}
	if err := fromStart(ctx, client, topic); err != nil {
		return err
	}
	var records []*kgo.Record
	for number := range jobs {
		records = append(records, &kgo.Record{
			Topic: topic, Partition: int32(number % 2), Value: []byte(fmt.Sprint(number)),
		})
	}
	if err := client.ProduceSync(ctx, records...).FirstErr(); err != nil {
		return err
	}
	var mutex sync.Mutex
	deliveries, faults := map[string][]int32{}, []string{}
	work := func(worker *kgo.Client) {
		for {
			fetches := worker.PollRecords(ctx, 10)
			if fetches.IsClientClosed() || ctx.Err() != nil {
				return
			}
			mutex.Lock()
			fetches.EachRecord(func(record *kgo.Record) {
				value := string(record.Value)
				deliveries[value] = append(deliveries[value], record.DeliveryCount())
				switch {
				case len(deliveries[value]) == 1 && isReleased(value):
					record.Ack(kgo.AckRelease)
				case isRejected(value):
					record.Ack(kgo.AckReject)
				default:
					record.Ack(kgo.AckAccept)
				}
			})
			mutex.Unlock()
		}
	}
	acknowledged := 0
	for range 2 {
		worker, err := franz.open(
			kgo.ShareGroup(topic), kgo.ConsumeTopics(topic),
			kgo.ShareAckCallback(func(_ *kgo.Client, results kgo.ShareAckResults) {
				mutex.Lock()
				defer mutex.Unlock()
				acknowledged++
				if err := results.Error(); err != nil {
					faults = append(faults, err.Error())
				}
			}),
		)
		if err != nil {
			return err
		}
		defer worker.Close()
		go work(worker)
	}
	err = eventually(ctx, "all jobs are done", func() bool {
		mutex.Lock()
		defer mutex.Unlock()
		done := 0
		for value, counts := range deliveries {
			if len(counts) == 2 || !isReleased(value) {
				done++
			}
		}
		return done == jobs && acknowledged > 0
	})
	mutex.Lock()
	defer mutex.Unlock()
	if len(faults) > 0 {
		return fmt.Errorf("acknowledgements were refused: %v", faults)
	}
	if err != nil {
		return err
	}
	for value, counts := range deliveries {
		expected := []int32{1}
		if isReleased(value) {
			expected = []int32{1, 2}
		}
		if fmt.Sprint(counts) != fmt.Sprint(expected) {
			return fmt.Errorf("%s was delivered with the counts %v", value, counts)
		}
	}
	return nil
}

func isReleased(value string) bool { return value[len(value)-1] == '3' }

func isRejected(value string) bool { return value[len(value)-1] == '7' }

// fromStart has a share group begin at the start of its topics.
func fromStart(ctx context.Context, client *kgo.Client, group string) error {
	resource := kmsg.NewIncrementalAlterConfigsRequestResource()
	resource.ResourceType, resource.ResourceName = kmsg.ConfigResourceTypeGroupConfig, group
	setting := kmsg.NewIncrementalAlterConfigsRequestResourceConfig()
	setting.Name, setting.Value = "share.auto.offset.reset", kmsg.StringPtr("earliest")
	resource.Configs = append(resource.Configs, setting)
	request := kmsg.NewPtrIncrementalAlterConfigsRequest()
	request.Resources = append(request.Resources, resource)
	response, err := request.RequestWith(ctx, client)
	if err != nil {
		return err
	}
	return kerr.ErrorForCode(response.Resources[0].ErrorCode)
}

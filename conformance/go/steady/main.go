// An idempotent producer of franz-go that sends numbered records at a steady rate.
//
// Arguments: the bootstrap server, the number of records per topic, the pause between two records of a topic in
// milliseconds, the topics. The program sends the number -1 to the first topic, prints "ready", and waits for a line
// on standard input. Then it sends the numbers from 0 to partition 0 of each topic. When all of them are answered,
// it prints a line for each record: topic, number, error, with tabs between.
package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

func main() {
	records, _ := strconv.Atoi(os.Args[2])
	pause, _ := strconv.Atoi(os.Args[3])
	topics := os.Args[4:]
	client, err := kgo.NewClient(
		kgo.SeedBrokers(os.Args[1]), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerLinger(0),
	)
	if err != nil {
		panic(err)
	}
	defer client.Close()
	ctx := context.Background()
	key := []byte("steady")
	first := &kgo.Record{Topic: topics[0], Key: key, Value: []byte("-1")}
	if err := client.ProduceSync(ctx, first).FirstErr(); err != nil {
		panic(err)
	}
	fmt.Println("ready")
	bufio.NewReader(os.Stdin).ReadString('\n')

	var lock sync.Mutex
	var lines []string
	for number := 0; number < records; number++ {
		for _, topic := range topics {
			value := strconv.Itoa(number)
			record := &kgo.Record{Topic: topic, Key: key, Value: []byte(value)}
			client.Produce(ctx, record, func(_ *kgo.Record, err error) {
				reason := ""
				if err != nil {
					reason = strings.Join(strings.Fields(err.Error()), " ")
				}
				lock.Lock()
				lines = append(lines, topic+"\t"+value+"\t"+reason)
				lock.Unlock()
			})
		}
		time.Sleep(time.Duration(pause) * time.Millisecond)
	}
	if err := client.Flush(ctx); err != nil {
		panic(err)
	}
	fmt.Println(strings.Join(lines, "\n"))
}

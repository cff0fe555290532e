// Clients of Kafka in Go against one broker: CLIENT ACTION BOOTSTRAP TOPIC [COUNT].
//
// Each action ends with exit code 0, or with what is wrong. "not there" means that the library
// has no such call.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/IBM/sarama"
	segmentio "github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/compress"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

const messages = 50

type client interface {
	produce(topic string, codec string, count int) error
	consume(topic string, count int) ([]string, error)
	offsets(topic string) error
	groups(topic string) error
	topics(topic string) error
	configs(topic string) error
	deletion(topic string) error
}

var ctx context.Context

func main() {
	name, action, bootstrap, topic := os.Args[1], os.Args[2], os.Args[3], os.Args[4]
	var stop context.CancelFunc
	ctx, stop = context.WithTimeout(context.Background(), 40*time.Second)
	defer stop()
	var with client
	switch name {
	case "franz-go":
		with = &franz{bootstrap}
	case "kafka-go":
		with = &segment{bootstrap}
	default:
		with = &shopify{bootstrap}
	}
	if err := run(with, name, action, topic); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(with client, name, action, topic string) error {
	switch action {
	case "produce":
		return with.produce(topic, "none", messages)
	case "consume":
		return reads(with, topic, messages)
	case "codecs":
		for _, codec := range []string{"gzip", "snappy", "lz4", "zstd"} {
			if err := with.produce(topic+"-"+codec, codec, messages); err != nil {
				return fmt.Errorf("%s: %w", codec, err)
			}
			if err := reads(with, topic+"-"+codec, messages); err != nil {
				return fmt.Errorf("%s: %w", codec, err)
			}
		}
		return nil
	case "write":
		return with.produce(topic, "lz4", 10)
	case "read":
		count, _ := strconv.Atoi(os.Args[5])
		seen, err := with.consume(topic, count)
		if err == nil && len(seen) != count {
			err = fmt.Errorf("%d of %d messages", len(seen), count)
		}
		return err
	case "offsets":
		return with.offsets(topic)
	case "groups":
		return with.groups(topic)
	case "topics":
		return with.topics(topic + "-made")
	case "configs":
		return with.configs(topic)
	case "deletion":
		return with.deletion(topic)
	}
	return fmt.Errorf("unknown action %s of %s", action, name)
}

func value(number int) string { return fmt.Sprintf("%d %s", number, strings.Repeat("x", 100)) }

func reads(with client, topic string, count int) error {
	seen, err := with.consume(topic, count)
	if err != nil {
		return err
	}
	for number := 0; number < count; number++ {
		if number >= len(seen) || seen[number] != value(number) {
			return fmt.Errorf("%d of %d messages, wrong at %d", len(seen), count, number)
		}
	}
	return nil
}

// -- franz-go ------------------------------------------------------------------------------------

type franz struct{ bootstrap string }

func (f *franz) open(options ...kgo.Opt) *kgo.Client {
	all := append([]kgo.Opt{kgo.SeedBrokers(f.bootstrap), kgo.AllowAutoTopicCreation()}, options...)
	made, err := kgo.NewClient(all...)
	if err != nil {
		panic(err)
	}
	return made
}

func (f *franz) produce(topic, codec string, count int) error {
	codecs := map[string]kgo.CompressionCodec{"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(),
		"snappy": kgo.SnappyCompression(), "lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression()}
	c := f.open(kgo.ProducerBatchCompression(codecs[codec]), kgo.ProducerLinger(5*time.Millisecond))
	defer c.Close()
	var records []*kgo.Record
	for number := 0; number < count; number++ {
		records = append(records, &kgo.Record{Topic: topic, Key: []byte("k"), Value: []byte(value(number)),
			Headers: []kgo.RecordHeader{{Key: "h", Value: []byte("v")}}})
	}
	return c.ProduceSync(ctx, records...).FirstErr()
}

func (f *franz) consume(topic string, count int) ([]string, error) {
	c := f.open(kgo.ConsumeTopics(topic))
	defer c.Close()
	return f.poll(c, count)
}

func (f *franz) poll(c *kgo.Client, count int) (seen []string, err error) {
	for len(seen) < count {
		fetches := c.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return seen, err
		}
		fetches.EachRecord(func(r *kgo.Record) { seen = append(seen, string(r.Value)) })
	}
	return seen, nil
}

func (f *franz) admin() (*kadm.Client, func()) {
	c := f.open()
	return kadm.NewClient(c), c.Close
}

func (f *franz) offsets(topic string) error {
	admin, done := f.admin()
	defer done()
	ends, err := admin.ListEndOffsets(ctx, topic)
	if err != nil {
		return err
	}
	if end, _ := ends.Lookup(topic, 0); end.Offset != messages || end.Err != nil {
		return fmt.Errorf("end %d %v", end.Offset, end.Err)
	}
	starts, err := admin.ListStartOffsets(ctx, topic)
	if start, _ := starts.Lookup(topic, 0); err != nil || start.Offset != 0 {
		return fmt.Errorf("start %d %v", start.Offset, err)
	}
	after, err := admin.ListOffsetsAfterMilli(ctx, 1000, topic)
	if at, _ := after.Lookup(topic, 0); err != nil || at.Offset != 0 {
		return fmt.Errorf("after a time %d %v", at.Offset, err)
	}
	return nil
}

func (f *franz) groups(topic string) error {
	group := "group-franz"
	c := f.open(kgo.ConsumerGroup(group), kgo.ConsumeTopics(topic), kgo.DisableAutoCommit(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if _, err := f.poll(c, messages); err != nil {
		return err
	}
	if err := c.CommitUncommittedOffsets(ctx); err != nil {
		return err
	}
	admin, done := f.admin()
	defer done()
	described, err := admin.DescribeGroups(ctx, group)
	if err != nil || described[group].State != "Stable" {
		return fmt.Errorf("described %v %v", described[group].State, err)
	}
	lag, err := admin.Lag(ctx, group)
	if err != nil || lag[group].Lag.Total() != 0 {
		return fmt.Errorf("lag %v %v", lag[group], err)
	}
	c.Close()
	listed, err := admin.ListGroups(ctx)
	if err != nil || len(listed[group].Group) == 0 {
		return fmt.Errorf("listed %v %v", listed, err)
	}
	fetched, err := admin.FetchOffsets(ctx, group)
	if at, _ := fetched.Lookup(topic, 0); err != nil || at.At != messages {
		return fmt.Errorf("committed %v %v", at, err)
	}
	deleted, err := admin.DeleteGroups(ctx, group)
	if err != nil {
		return err
	}
	return deleted[group].Err
}

func (f *franz) topics(topic string) error {
	admin, done := f.admin()
	defer done()
	short := "3600000"
	made, err := admin.CreateTopic(ctx, 2, -1, map[string]*string{"retention.ms": &short}, topic)
	if err != nil || made.Err != nil {
		return fmt.Errorf("create %v %v", made.Err, err)
	}
	if again, _ := admin.CreateTopic(ctx, 2, -1, nil, topic); again.Err != kerr.TopicAlreadyExists {
		return fmt.Errorf("create again %v", again.Err)
	}
	more, err := admin.CreatePartitions(ctx, 1, topic)
	if err != nil || more[topic].Err != nil {
		return fmt.Errorf("more %v %v", more, err)
	}
	listed, err := admin.ListTopics(ctx, topic)
	if err != nil || len(listed[topic].Partitions) != 3 {
		return fmt.Errorf("listed %v %v", listed, err)
	}
	deleted, err := admin.DeleteTopics(ctx, topic)
	if err != nil {
		return err
	}
	return deleted[topic].Err
}

func (f *franz) configs(topic string) error {
	admin, done := f.admin()
	defer done()
	size := "1000000"
	altered, err := admin.AlterTopicConfigs(ctx,
		[]kadm.AlterConfig{{Op: kadm.SetConfig, Name: "retention.bytes", Value: &size}}, topic)
	if err != nil || altered[0].Err != nil {
		return fmt.Errorf("altered %v %v", altered, err)
	}
	described, err := admin.DescribeTopicConfigs(ctx, topic)
	if err != nil {
		return err
	}
	for _, config := range described[0].Configs {
		if config.Key == "retention.bytes" && config.MaybeValue() == size {
			return nil
		}
	}
	return fmt.Errorf("not described: %v", described)
}

func (f *franz) deletion(topic string) error {
	admin, done := f.admin()
	defer done()
	ends, _ := admin.ListEndOffsets(ctx, topic)
	deleted, err := admin.DeleteRecords(ctx, ends.Offsets())
	if err != nil {
		return err
	}
	if deleted[topic][0].LowWatermark != messages {
		return fmt.Errorf("low watermark %v", deleted[topic][0])
	}
	return deleted[topic][0].Err
}

// -- kafka-go ------------------------------------------------------------------------------------

type segment struct{ bootstrap string }

func (s *segment) client() *segmentio.Client {
	return &segmentio.Client{Addr: segmentio.TCP(s.bootstrap), Timeout: 20 * time.Second}
}

func (s *segment) produce(topic, codec string, count int) error {
	codecs := map[string]compress.Compression{"none": compress.None, "gzip": compress.Gzip,
		"snappy": compress.Snappy, "lz4": compress.Lz4, "zstd": compress.Zstd}
	w := &segmentio.Writer{Addr: segmentio.TCP(s.bootstrap), Topic: topic, RequiredAcks: segmentio.RequireAll,
		AllowAutoTopicCreation: true, BatchTimeout: 5 * time.Millisecond, Compression: codecs[codec]}
	defer w.Close()
	var all []segmentio.Message
	for number := 0; number < count; number++ {
		all = append(all, segmentio.Message{Key: []byte("k"), Value: []byte(value(number)),
			Headers: []segmentio.Header{{Key: "h", Value: []byte("v")}}})
	}
	var err error
	for try := 0; try < 20; try++ {
		if err = w.WriteMessages(ctx, all...); err == nil {
			return nil
		}
		time.Sleep(100 * time.Millisecond)
	}
	return err
}

func (s *segment) consume(topic string, count int) (seen []string, err error) {
	r := segmentio.NewReader(segmentio.ReaderConfig{Brokers: []string{s.bootstrap}, Topic: topic,
		MaxWait: 200 * time.Millisecond})
	defer r.Close()
	return s.read(r, count)
}

func (s *segment) read(r *segmentio.Reader, count int) (seen []string, err error) {
	for len(seen) < count {
		m, err := r.ReadMessage(ctx)
		if err != nil {
			return seen, err
		}
		seen = append(seen, string(m.Value))
	}
	return seen, nil
}

func (s *segment) offsets(topic string) error {
	answer, err := s.client().ListOffsets(ctx, &segmentio.ListOffsetsRequest{Topics: map[string][]segmentio.OffsetRequest{
		topic: {segmentio.FirstOffsetOf(0), segmentio.LastOffsetOf(0)}}})
	if err != nil {
		return err
	}
	at := answer.Topics[topic][0]
	if at.FirstOffset != 0 || at.LastOffset != messages || at.Error != nil {
		return fmt.Errorf("offsets %+v", at)
	}
	return nil
}

func (s *segment) groups(topic string) error {
	group := "group-segmentio"
	r := segmentio.NewReader(segmentio.ReaderConfig{Brokers: []string{s.bootstrap}, GroupID: group,
		Topic: topic, MaxWait: 200 * time.Millisecond, StartOffset: segmentio.FirstOffset})
	if _, err := s.read(r, messages); err != nil {
		return err
	}
	if err := r.Close(); err != nil {
		return err
	}
	fetched, err := s.client().OffsetFetch(ctx, &segmentio.OffsetFetchRequest{GroupID: group,
		Topics: map[string][]int{topic: {0}}})
	if err != nil || fetched.Topics[topic][0].CommittedOffset != messages {
		return fmt.Errorf("committed %+v %v", fetched, err)
	}
	described, err := s.client().DescribeGroups(ctx, &segmentio.DescribeGroupsRequest{GroupIDs: []string{group}})
	if err != nil || described.Groups[0].Error != nil {
		return fmt.Errorf("described %+v %v", described, err)
	}
	if _, err = s.client().OffsetDelete(ctx, &segmentio.OffsetDeleteRequest{GroupID: group,
		Topics: map[string][]int{topic: {0}}}); err != nil {
		return err
	}
	return nil
}

func (s *segment) topics(topic string) error {
	made, err := s.client().CreateTopics(ctx, &segmentio.CreateTopicsRequest{Topics: []segmentio.TopicConfig{
		{Topic: topic, NumPartitions: 2, ReplicationFactor: 1}}})
	if err != nil || made.Errors[topic] != nil {
		return fmt.Errorf("create %+v %v", made, err)
	}
	more, err := s.client().CreatePartitions(ctx, &segmentio.CreatePartitionsRequest{
		Topics: []segmentio.TopicPartitionsConfig{{Name: topic, Count: 3}}})
	if err != nil || more.Errors[topic] != nil {
		return fmt.Errorf("more %+v %v", more, err)
	}
	for { // its metadata is some seconds old
		listed, err := s.client().Metadata(ctx, &segmentio.MetadataRequest{Topics: []string{topic}})
		if err != nil {
			return fmt.Errorf("listed %+v %v", listed, err)
		}
		if len(listed.Topics[0].Partitions) == 3 {
			break
		}
		time.Sleep(200 * time.Millisecond)
	}
	deleted, err := s.client().DeleteTopics(ctx, &segmentio.DeleteTopicsRequest{Topics: []string{topic}})
	if err != nil || deleted.Errors[topic] != nil {
		return fmt.Errorf("delete %+v %v", deleted, err)
	}
	return nil
}

func (s *segment) configs(topic string) error {
	altered, err := s.client().IncrementalAlterConfigs(ctx, &segmentio.IncrementalAlterConfigsRequest{
		Resources: []segmentio.IncrementalAlterConfigsRequestResource{{
			ResourceType: segmentio.ResourceTypeTopic, ResourceName: topic,
			Configs: []segmentio.IncrementalAlterConfigsRequestConfig{{Name: "retention.bytes", Value: "1000000",
				ConfigOperation: segmentio.ConfigOperationSet}}}}})
	if err != nil || altered.Resources[0].Error != nil {
		return fmt.Errorf("altered %+v %v", altered, err)
	}
	described, err := s.client().DescribeConfigs(ctx, &segmentio.DescribeConfigsRequest{
		Resources: []segmentio.DescribeConfigRequestResource{{ResourceType: segmentio.ResourceTypeTopic,
			ResourceName: topic, ConfigNames: []string{"retention.bytes"}}}})
	if err != nil || described.Resources[0].ConfigEntries[0].ConfigValue != "1000000" {
		return fmt.Errorf("described %+v %v", described, err)
	}
	return nil
}

func (s *segment) deletion(string) error { fmt.Println("not there"); return nil }

// -- sarama --------------------------------------------------------------------------------------

type shopify struct{ bootstrap string }

func (s *shopify) config() *sarama.Config {
	c := sarama.NewConfig()
	c.Version = sarama.V2_4_0_0
	c.Producer.Return.Successes = true
	c.Producer.RequiredAcks = sarama.WaitForAll
	c.Consumer.Offsets.Initial = sarama.OffsetOldest
	c.Metadata.AllowAutoTopicCreation = true
	return c
}

func (s *shopify) produce(topic, codec string, count int) error {
	codecs := map[string]sarama.CompressionCodec{"none": sarama.CompressionNone, "gzip": sarama.CompressionGZIP,
		"snappy": sarama.CompressionSnappy, "lz4": sarama.CompressionLZ4, "zstd": sarama.CompressionZSTD}
	c := s.config()
	c.Producer.Compression = codecs[codec]
	p, err := sarama.NewSyncProducer([]string{s.bootstrap}, c)
	if err != nil {
		return err
	}
	defer p.Close()
	var all []*sarama.ProducerMessage
	for number := 0; number < count; number++ {
		all = append(all, &sarama.ProducerMessage{Topic: topic, Key: sarama.StringEncoder("k"),
			Value:   sarama.StringEncoder(value(number)),
			Headers: []sarama.RecordHeader{{Key: []byte("h"), Value: []byte("v")}}})
	}
	return p.SendMessages(all)
}

func (s *shopify) consume(topic string, count int) (seen []string, err error) {
	c, err := sarama.NewConsumer([]string{s.bootstrap}, s.config())
	if err != nil {
		return nil, err
	}
	defer c.Close()
	p, err := c.ConsumePartition(topic, 0, sarama.OffsetOldest)
	if err != nil {
		return nil, err
	}
	defer p.Close()
	for len(seen) < count {
		select {
		case m := <-p.Messages():
			seen = append(seen, string(m.Value))
		case <-ctx.Done():
			return seen, fmt.Errorf("only %d messages", len(seen))
		}
	}
	return seen, nil
}

func (s *shopify) offsets(topic string) error {
	c, err := sarama.NewClient([]string{s.bootstrap}, s.config())
	if err != nil {
		return err
	}
	defer c.Close()
	last, err := c.GetOffset(topic, 0, sarama.OffsetNewest)
	if err != nil || last != messages {
		return fmt.Errorf("end %d %v", last, err)
	}
	first, err := c.GetOffset(topic, 0, 1000)
	if err != nil || first != 0 {
		return fmt.Errorf("by time %d %v", first, err)
	}
	return nil
}

type handler struct{ seen chan string }

func (h *handler) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (h *handler) Cleanup(sarama.ConsumerGroupSession) error { return nil }
func (h *handler) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for {
		select {
		case m, open := <-claim.Messages():
			if !open {
				return nil
			}
			session.MarkMessage(m, "")
			h.seen <- string(m.Value)
		case <-session.Context().Done():
			return nil
		}
	}
}

func (s *shopify) admin() (sarama.ClusterAdmin, error) {
	return sarama.NewClusterAdmin([]string{s.bootstrap}, s.config())
}

func (s *shopify) groups(topic string) error {
	name := "group-sarama"
	group, err := sarama.NewConsumerGroup([]string{s.bootstrap}, name, s.config())
	if err != nil {
		return err
	}
	h := &handler{make(chan string, messages)}
	inner, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- group.Consume(inner, []string{topic}, h) }()
	for number := 0; number < messages; number++ {
		select {
		case <-h.seen:
		case err := <-done:
			return fmt.Errorf("after %d: %v", number, err)
		case <-ctx.Done():
			return fmt.Errorf("only %d messages", number)
		}
	}
	stop()
	<-done
	if err := group.Close(); err != nil {
		return err
	}
	admin, err := s.admin()
	if err != nil {
		return err
	}
	defer admin.Close()
	committed, err := admin.ListConsumerGroupOffsets(name, map[string][]int32{topic: {0}})
	if err != nil || committed.GetBlock(topic, 0).Offset != messages {
		return fmt.Errorf("committed %+v %v", committed, err)
	}
	described, err := admin.DescribeConsumerGroups([]string{name})
	if err != nil || described[0].State != "Empty" {
		return fmt.Errorf("described %+v %v", described, err)
	}
	if err := admin.DeleteConsumerGroupOffset(name, topic, 0); err != nil {
		return err
	}
	return nil
}

func (s *shopify) topics(topic string) error {
	admin, err := s.admin()
	if err != nil {
		return err
	}
	defer admin.Close()
	if err := admin.CreateTopic(topic, &sarama.TopicDetail{NumPartitions: 2, ReplicationFactor: 1}, false); err != nil {
		return err
	}
	if err := admin.CreatePartitions(topic, 3, nil, false); err != nil {
		return err
	}
	described, err := admin.DescribeTopics([]string{topic})
	if err != nil || len(described[0].Partitions) != 3 {
		return fmt.Errorf("described %+v %v", described, err)
	}
	if _, err := admin.ListTopics(); err != nil {
		return err
	}
	return admin.DeleteTopic(topic)
}

func (s *shopify) configs(topic string) error {
	admin, err := s.admin()
	if err != nil {
		return err
	}
	defer admin.Close()
	size := "1000000"
	if err := admin.IncrementalAlterConfig(sarama.TopicResource, topic, map[string]sarama.IncrementalAlterConfigsEntry{
		"retention.bytes": {Operation: sarama.IncrementalAlterConfigsOperationSet, Value: &size}}, false); err != nil {
		return err
	}
	entries, err := admin.DescribeConfig(sarama.ConfigResource{Type: sarama.TopicResource, Name: topic,
		ConfigNames: []string{"retention.bytes"}})
	if err != nil || entries[0].Value != size {
		return fmt.Errorf("described %+v %v", entries, err)
	}
	return nil
}

func (s *shopify) deletion(topic string) error {
	admin, err := s.admin()
	if err != nil {
		return err
	}
	defer admin.Close()
	return admin.DeleteRecords(topic, map[int32]int64{0: messages})
}

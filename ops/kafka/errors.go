package kafka

import (
	"errors"
	"fmt"

	"github.com/segmentio/kafka-go"

	"github.com/nextstate-rl/nextstate/schemas"
)

// ErrClosed is the error of calls that the closing of the log interrupted.
var ErrClosed = errors.New("kafka: the log is closed")

// retryable tells whether repeating a request may help: everything but what the broker refuses for good.
func retryable(err error) bool {
	var count *partitionCountError
	if errors.Is(err, ErrClosed) || errors.Is(err, schemas.ErrTruncated) || blamesRecord(err) || errors.As(err, &count) {
		return false
	}
	for _, final := range []kafka.Error{
		kafka.TopicAuthorizationFailed, kafka.GroupAuthorizationFailed, kafka.ClusterAuthorizationFailed, kafka.SASLAuthenticationFailed,
		kafka.UnsupportedSASLMechanism, kafka.UnsupportedVersion, kafka.InvalidTopic, kafka.PolicyViolation, kafka.InvalidReplicationFactor,
		kafka.InvalidPartitionNumber, kafka.InvalidConfiguration, kafka.OffsetMetadataTooLarge,
	} {
		if errors.Is(err, final) {
			return false
		}
	}
	return true
}

// blamesRecord tells whether the broker refused a batch for what is in one of its records.
func blamesRecord(err error) bool {
	return errors.Is(err, schemas.ErrTooLarge) || errors.Is(err, kafka.InvalidTimestamp) || errors.Is(err, kafka.InvalidRecord)
}

// commitError turns the broker's refusal of a former owner into schemas.ErrFenced. RebalanceInProgress is among them: the broker gives it
// to a member of the coming generation that has not yet been told its partitions, so whatever it owned before is up for grabs.
func commitError(err error) error {
	for _, fenced := range []kafka.Error{
		kafka.IllegalGeneration, kafka.UnknownMemberId, kafka.RebalanceInProgress, kafka.FencedInstanceID,
	} {
		if errors.Is(err, fenced) {
			return fmt.Errorf("%w (%w)", schemas.ErrFenced, fenced)
		}
	}
	return err
}

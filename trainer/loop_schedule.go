package trainer

import (
	"fmt"
	"time"

	"github.com/robfig/cron/v3"
)

// Schedule says when updates are allowed. The zero value is "always".
type Schedule struct {
	kind string
	cron cron.Schedule
}

// The kinds of schedules beside CRON expressions.
const (
	scheduleAlways = "always"
	scheduleIdle   = "idle"
	scheduleCron   = "cron"
)

// idlePoll is how often the schedule "idle" looks whether somebody is served.
const idlePoll = 100 * time.Millisecond

// ParseSchedule reads "always" (an update as soon as there is a minibatch), "idle" (only while nobody is served), or a CRON expression of five fields or a
// descriptor such as "@hourly": at those times everything that has come is trained, in as many updates as it takes.
func ParseSchedule(text string) (Schedule, error) {
	switch text {
	case "", scheduleAlways:
		return Schedule{kind: scheduleAlways}, nil
	case scheduleIdle:
		return Schedule{kind: scheduleIdle}, nil
	}
	c, err := cron.ParseStandard(text)
	if err != nil {
		return Schedule{}, fmt.Errorf("train: the schedule %q is neither always nor idle, nor a CRON expression such as '0 3 * * *': %w", text, err)
	}
	return Schedule{kind: scheduleCron, cron: c}, nil
}

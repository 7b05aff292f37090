package llama

import (
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/hybridgroup/yzma/pkg/llama"
)

const (
	// stallMax is how long a step may take that computes prompts while others wait for their next token.
	stallMax = 60 * time.Millisecond
	// turnLeast is how long one version is in force while another has work: changing costs a few ms.
	turnLeast = 40 * time.Millisecond
	// chunkLeast is the least that a step takes of prompts.
	chunkLeast = 16
)

// scheduler owns llama.cpp: one goroutine, one thread. Commands come in, each step of the running jobs is one batch, reports go out.
type scheduler struct {
	native   *native
	commands chan command
	loads    chan load
	loaded   chan load
	reports  *frameWriter
	out      report

	versions versions
	slots    []*slot
	waiting  []*job // in order of arrival; the parent bounds them
	clock    uint64 // counts steps
	since    time.Time
	perToken time.Duration // of a prompt, as measured

	batchMax int
	plan     []piece
	rows     []row
	samplers []*sampler
}

// piece is what a step decodes of a job.
type piece struct {
	job *job
	n   int
}

// row is an output of a step.
type row struct {
	job      *job
	position int // in the job's input
	index    int // in the batch
	logits   []float32
	err      error
}

// load is a LoRA on its way.
type load struct {
	id      uint64
	swap    swap
	adapter llama.AdapterLora
	err     error
}

// loadsMax bounds the swaps that wait; the parent sends one at a time, but may give up on one and send the next.
const loadsMax = 16

func newScheduler(cfg *Config, n *native, reports *frameWriter) *scheduler {
	s := &scheduler{
		native: n, reports: reports, versions: newVersions(cfg.Versions), batchMax: cfg.Batch, perToken: time.Millisecond,
		// All that the parent admits and their cancellations: the reader never waits.
		commands: make(chan command, 4*(cfg.Parallel+cfg.Queue)+loadsMax),
		loads:    make(chan load, loadsMax), loaded: make(chan load, loadsMax),
	}
	for i := range cfg.Parallel {
		s.slots = append(s.slots, &slot{seq: llama.SeqId(i)})
	}
	for range cfg.Threads {
		s.samplers = append(s.samplers, &sampler{})
	}
	return s
}

// run works until the process ends. Its error is of llama.cpp or the pipe: the parent starts another child.
func (s *scheduler) run() error {
	s.out.Ready, s.out.Versions = &s.native.info, s.versions.names()
	if err := s.flush(); err != nil {
		return err
	}
	go s.load() // ends with the process
	for {
		s.receive()
		if err := s.admit(); err != nil {
			return err
		}
		if err := s.step(); err != nil {
			return err
		}
		if err := s.flush(); err != nil {
			return err
		}
	}
}

// load reads adapters beside the scheduler, so that no token waits for a file.
func (s *scheduler) load() {
	for l := range s.loads {
		l.adapter, l.err = s.native.load(l.swap.Adapter)
		s.loaded <- l
	}
}

// receive takes what has come, and waits for something where there is nothing to do.
func (s *scheduler) receive() {
	for {
		if len(s.waiting) == 0 && !slices.ContainsFunc(s.slots, func(s *slot) bool { return s.job != nil }) && len(s.out.Events) == 0 {
			select {
			case c := <-s.commands:
				s.take(c)
			case l := <-s.loaded:
				s.finishSwap(l)
			}
			continue
		}
		select {
		case c := <-s.commands:
			s.take(c)
		case l := <-s.loaded:
			s.finishSwap(l)
		default:
			return
		}
	}
}

func (s *scheduler) take(c command) {
	switch {
	case c.Cancel:
		s.cancel(c.ID)
	case c.Swap != nil:
		s.startSwap(c.ID, *c.Swap)
	default:
		name := ""
		if c.Generate != nil {
			name = c.Generate.Request.Version
		} else {
			name = c.Score.Version
		}
		v, failed := s.versions.find(name)
		if failed != nil {
			s.say(event{ID: c.ID, Failed: failed})
			return
		}
		v.users++
		v.used = s.clock
		if c.Generate != nil {
			s.waiting = append(s.waiting, newGeneration(c.ID, c.Generate, v))
		} else {
			s.waiting = append(s.waiting, newScoring(c.ID, c.Score, v))
		}
	}
}

func (s *scheduler) cancel(id uint64) {
	for i, j := range s.waiting {
		if j.id == id {
			s.waiting = slices.Delete(s.waiting, i, i+1)
			j.free()
			return
		}
	}
	for _, slot := range s.slots {
		if slot.job != nil && slot.job.id == id {
			slot.job.free()
			return
		}
	}
}

func (s *scheduler) startSwap(id uint64, w swap) {
	if v, failed := s.versions.find(w.Version); failed == nil {
		s.publish(id, v)
		return
	}
	if w.Adapter == "" {
		s.publish(id, &version{name: w.Version})
		return
	}
	select {
	case s.loads <- load{id: id, swap: w}:
	default:
		s.say(event{ID: id, Failed: &failure{Status: http.StatusServiceUnavailable, Message: "too many versions are being loaded; try again later"}})
	}
}

func (s *scheduler) finishSwap(l load) {
	if l.err != nil {
		s.say(event{ID: l.id, Failed: invalid("%v", l.err)})
		return
	}
	v, failed := s.versions.find(l.swap.Version)
	if failed != nil { // else it was loaded twice at once: the first stays
		v = &version{name: l.swap.Version, adapter: l.adapter}
	} else if err := s.native.free(l.adapter); err != nil {
		s.say(event{ID: l.id, Failed: &failure{Status: http.StatusServiceUnavailable, Message: err.Error()}})
		return
	}
	s.publish(l.id, v)
}

func (s *scheduler) publish(id uint64, v *version) {
	v.used = s.clock
	s.versions.publish(v)
	s.out.Versions = s.versions.names()
	s.say(event{ID: id, Swapped: true})
}

// drop frees versions that are too many.
func (s *scheduler) drop() error {
	for _, v := range s.versions.surplus() {
		s.out.Versions = s.versions.names()
		if v.adapter == 0 || s.versions.shared(v.adapter) {
			continue
		}
		for _, slot := range s.slots { // the handle may come back as another adapter's
			if slot.adapter == v.adapter {
				slot.adapter, slot.tokens = 0, nil
				if _, err := s.native.trim(slot.seq, 0); err != nil {
					return err
				}
			}
		}
		if s.native.inForce == v.adapter {
			if err := s.native.use(0); err != nil {
				return err
			}
		}
		if err := s.native.free(v.adapter); err != nil {
			return err
		}
	}
	return nil
}

// admit gives idle slots to waiting jobs in order of arrival. Scoring takes half of the slots at most, so that a teacher does not keep people waiting.
func (s *scheduler) admit() error {
	if err := s.drop(); err != nil {
		return err
	}
	scoring := 0
	for _, slot := range s.slots {
		if slot.job != nil && slot.job.score != nil {
			scoring++
		}
	}
	for i := 0; i < len(s.waiting); {
		j := s.waiting[i]
		if j.score != nil && scoring >= max(1, len(s.slots)/2) {
			i++
			continue
		}
		slot := choose(s.slots, j)
		if slot == nil {
			return nil
		}
		s.waiting = slices.Delete(s.waiting, i, i+1)
		if j.score != nil {
			scoring++
		}
		if err := s.start(j, slot); err != nil {
			return err
		}
	}
	return nil
}

// start puts a job on a slot and keeps of the slot's cache what the job can use: at least one token is decoded, for its logits.
func (s *scheduler) start(j *job, slot *slot) error {
	if j.gen != nil && j.gen.JSON {
		if j.grammar = newGrammar(s.native.vocab); j.grammar == nil {
			s.fail(j, &failure{Status: http.StatusBadRequest, Param: "response_format", Message: "llama.cpp cannot hold this model to JSON; ask for it in the prompt"})
			return nil
		}
	}
	kept, err := s.native.trim(slot.seq, min(slot.common(j.input, j.version.adapter), j.prompt-1))
	if err != nil {
		return err
	}
	slot.tokens = slot.tokens[:kept]
	slot.adapter, slot.session, slot.job = j.version.adapter, j.session(), j
	j.slot = slot
	s.say(event{ID: j.id, Started: &Result{Version: j.version.name, Cached: kept}})
	return nil
}

func (s *scheduler) say(e event) { s.out.Events = append(s.out.Events, e) }

func (s *scheduler) fail(j *job, f *failure) {
	s.say(event{ID: j.id, Failed: f})
	j.free()
}

func (s *scheduler) flush() error {
	if s.out.Ready == nil && s.out.Versions == nil && len(s.out.Events) == 0 {
		return nil
	}
	if err := s.reports.write(&s.out); err != nil {
		return fmt.Errorf("write a report: %w", err)
	}
	s.out.Ready, s.out.Versions, s.out.Events = nil, nil, s.out.Events[:0]
	return nil
}

package llama

import (
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/hybridgroup/yzma/pkg/llama"
)

// step decodes one batch of the jobs of one version: a token of each that samples, chunks of the prompts of the others.
func (s *scheduler) step() error {
	adapter, any := s.turn()
	if !any {
		return nil
	}
	s.clock++
	prompts := s.compose(adapter)
	if err := s.fill(); err != nil {
		return err
	}
	if err := s.native.use(adapter); err != nil {
		return err
	}
	began := time.Now()
	if err := s.native.decode(); err != nil {
		return s.broken(err)
	}
	for _, p := range s.plan {
		p.job.slot.tokens = append(p.job.slot.tokens, p.job.input[len(p.job.slot.tokens):][:p.n]...)
		p.job.slot.used = s.clock
	}
	if err := s.read(); err != nil {
		return err
	}
	if n := int(s.native.batch.NTokens); prompts >= chunkLeast { // decoded tokens count in: the bound is on the step
		s.perToken += (time.Since(began)/time.Duration(n) - s.perToken) / 4
	}
	s.sample()
	s.deliver()
	return nil
}

// turn chooses the adapter for this step: the one in force, until its time is up and another has work.
func (s *scheduler) turn() (llama.AdapterLora, bool) {
	var oldest *slot
	mine := false
	for _, slot := range s.slots {
		switch {
		case slot.job == nil:
		case slot.adapter == s.native.inForce:
			mine = true
		case oldest == nil || slot.used < oldest.used:
			oldest = slot
		}
	}
	switch {
	case oldest == nil:
		return s.native.inForce, mine
	case mine && time.Since(s.since) < turnLeast:
		return s.native.inForce, true
	}
	s.since = time.Now()
	return oldest.adapter, true
}

// compose fills the plan, in the order of sequences because llama.cpp computes neighbours together. It returns how many tokens are of prompts.
func (s *scheduler) compose(adapter llama.AdapterLora) (prompts int) {
	s.plan = s.plan[:0]
	room, outputs := s.batchMax, min(s.batchMax, max(outputsMax, len(s.slots)))
	filling, others := 0, false
	for _, slot := range s.slots {
		switch {
		case slot.job == nil:
		case slot.job.decoding() && slot.adapter == adapter:
			s.plan = append(s.plan, piece{slot.job, 1})
			room, outputs, others = room-1, outputs-1, true
		case slot.adapter == adapter:
			filling++
		default:
			others = true
		}
	}
	if filling == 0 {
		return 0
	}
	if others {
		room = min(room, max(chunkLeast, int(stallMax/max(s.perToken, time.Microsecond))))
	}
	// Everyone gets the same share; what is not used goes to the next. The first in line changes with every step.
	for i := range s.slots {
		slot := s.slots[(i+int(s.clock))%len(s.slots)]
		if slot.job == nil || slot.adapter != adapter || slot.job.decoding() {
			continue
		}
		n, limit := 0, min(slot.job.left(), (room+filling-1)/filling)
		if ahead := slot.job.prompt - 1 - len(slot.tokens); ahead > 0 {
			limit = min(limit, ahead) // see outputsMax
		}
		for ; n < limit; n++ {
			if slot.job.wants(len(slot.tokens) + n) {
				if outputs == 0 {
					break
				}
				outputs--
			}
		}
		filling--
		if n > 0 {
			s.plan = append(s.plan, piece{slot.job, n})
			room, prompts = room-n, prompts+n
		}
	}
	slices.SortFunc(s.plan, func(a, b piece) int { return int(a.job.slot.seq - b.job.slot.seq) })
	return prompts
}

// fill writes the plan into the batch and notes its outputs.
func (s *scheduler) fill() error {
	s.rows = s.rows[:0]
	if err := s.native.batch.Clear(); err != nil {
		return err
	}
	seq := make([]llama.SeqId, 1)
	for _, p := range s.plan {
		seq[0] = p.job.slot.seq
		for i := range p.n {
			at := len(p.job.slot.tokens) + i
			wants := p.job.wants(at)
			if err := s.native.batch.Add(p.job.input[at], llama.Pos(at), seq, wants); err != nil {
				return err
			}
			if wants {
				s.rows = append(s.rows, row{job: p.job, position: at, index: int(s.native.batch.NTokens) - 1})
			}
		}
	}
	return nil
}

// read finds the logits of the outputs.
func (s *scheduler) read() (err error) {
	for i := range s.rows {
		if s.rows[i].logits, err = s.native.logits(s.rows[i].index); err != nil {
			return err
		}
	}
	return nil
}

// sample reduces the rows, in parallel where there are several: llama.cpp's threads sleep meanwhile. Rows of one job write to different places.
func (s *scheduler) sample() {
	workers := min(len(s.samplers), len(s.rows))
	work := func(w int) {
		for i := w * len(s.rows) / workers; i < (w+1)*len(s.rows)/workers; i++ {
			s.rows[i].reduce(s.samplers[w])
		}
	}
	var others sync.WaitGroup
	for w := 1; w < workers; w++ {
		others.Go(func() { work(w) })
	}
	if workers > 0 {
		work(0)
	}
	others.Wait()
}

func (r *row) reduce(s *sampler) {
	if r.job.gen != nil {
		r.job.sample(s, r.logits)
		r.err = r.job.err
		return
	}
	r.err = r.job.judge(s, r.logits, r.position)
}

// deliver says what came out of the step and frees what is done.
func (s *scheduler) deliver() {
	for _, r := range s.rows {
		j := r.job
		switch {
		case j.slot == nil: // an earlier row of its failed
		case r.err != nil:
			j.slot.tokens = j.slot.tokens[:0] // what gave this is not to be used again
			s.fail(j, &failure{Status: http.StatusBadGateway, Message: r.err.Error()})
		case j.gen != nil:
			token := j.token
			s.say(event{ID: j.id, Token: &token})
			if j.took(s.native.info.Context); j.stopped != "" {
				s.say(event{ID: j.id, Done: &Result{Version: j.version.name, Reason: j.stopped}})
				j.free()
			}
		case r.position == len(j.input)-1:
			s.say(event{ID: j.id, Scored: j.scored})
			j.free()
		}
	}
}

// broken fails the jobs of a step that llama.cpp could not compute, and empties their caches, whose state is unknown.
func (s *scheduler) broken(err error) error {
	for _, p := range s.plan {
		slot := p.job.slot
		slot.tokens = slot.tokens[:0]
		s.fail(p.job, &failure{Status: http.StatusServiceUnavailable, Message: "the policy engine could not compute the request; try again: " + err.Error()})
		if _, err := s.native.trim(slot.seq, 0); err != nil {
			return err
		}
	}
	return nil
}

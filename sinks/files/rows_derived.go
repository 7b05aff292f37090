package files

import (
	"slices"
	"strings"

	"github.com/nextstate-rl/nextstate/schemas"
)

type turnClosed struct {
	TurnID      string        `parquet:"turn_id"`
	TurnIndex   int64         `parquet:"turn_index"`
	CloseReason string        `parquet:"close_reason,dict"`
	EndReason   *string       `parquet:"end_reason,optional,dict"`
	Action      action        `parquet:"action"`
	NextState   []observation `parquet:"next_state,list"`
	Feedback    []feedback    `parquet:"feedback,list"`
	Outcome     *outcome      `parquet:"outcome,optional"`
	SourceIDs   []string      `parquet:"source_ids,list"`
}

func turnClosedRow(c *schemas.TurnClosed) turnClosed {
	row := turnClosed{
		TurnID: c.GetTurnId(), TurnIndex: int64(c.GetTurnIndex()), CloseReason: word(c.GetCloseReason(), "CLOSE_REASON_"), EndReason: c.EndReason,
		Action: actionRow(c.GetAction()), NextState: observationsOf(c.GetNextState()), SourceIDs: c.GetSourceIds(),
	}
	for _, f := range c.GetFeedback() {
		row.Feedback = append(row.Feedback, feedbackRow(f))
	}
	if o := c.GetOutcome(); o != nil {
		one := outcomeRow(o)
		row.Outcome = &one
	}
	return row
}

type vote struct {
	TurnID    string  `parquet:"turn_id"`
	Judge     string  `parquet:"judge,dict"`
	Index     int64   `parquet:"index"`
	Vote      *int32  `parquet:"vote,optional"`
	Rationale string  `parquet:"rationale"`
	Model     *string `parquet:"model,optional,dict"`
	Error     *string `parquet:"error,optional"`
}

func voteRow(v *schemas.VoteCast) vote {
	return vote{v.GetTurnId(), v.GetJudge(), int64(v.GetIndex()), v.Vote, v.GetRationale(), v.Model, v.Error}
}

type judged struct {
	TurnID     string   `parquet:"turn_id"`
	Score      *int32   `parquet:"score,optional"`
	MeanVote   float64  `parquet:"mean_vote"`
	Outcome    *float64 `parquet:"outcome,optional"`
	StepReward *float64 `parquet:"step_reward,optional"`
	Judge      string   `parquet:"judge,dict"`
	Votes      int64    `parquet:"votes"`
	ValidVotes int64    `parquet:"valid_votes"`
	Reason     string   `parquet:"reason"`
	TurnOffset uint64   `parquet:"turn_offset"`
}

func judgedRow(j *schemas.TurnJudged) judged {
	return judged{
		j.GetTurnId(), j.Score, j.GetMeanVote(), j.Outcome, j.StepReward, j.GetJudge(), int64(j.GetVotes()), int64(j.GetValidVotes()),
		j.GetReason(), j.GetTurnOffset(),
	}
}

type hintVote struct {
	TurnID    string  `parquet:"turn_id"`
	Finder    string  `parquet:"finder,dict"`
	Index     int64   `parquet:"index"`
	Decision  *int32  `parquet:"decision,optional"`
	Hint      string  `parquet:"hint"`
	Rationale string  `parquet:"rationale"`
	Model     *string `parquet:"model,optional,dict"`
	Error     *string `parquet:"error,optional"`
}

func hintVoteRow(v *schemas.HintVoteCast) hintVote {
	return hintVote{v.GetTurnId(), v.GetFinder(), int64(v.GetIndex()), v.Decision, v.GetHint(), v.GetRationale(), v.Model, v.Error}
}

type teacher struct {
	TurnID            string    `parquet:"turn_id"`
	HintIndex         int64     `parquet:"hint_index"`
	Hint              string    `parquet:"hint"`
	TeacherVersion    string    `parquet:"teacher_version,dict"`
	Temperature       float64   `parquet:"temperature"`
	Logprobs          []float32 `parquet:"logprobs,list"`
	TopK              *topK     `parquet:"top_k,optional"`
	LogprobsAtStudent []float32 `parquet:"logprobs_at_student,list"`
	Overlap           uint64    `parquet:"overlap"`
	HintIndexes       []uint32  `parquet:"hint_indexes,list"`
}

func teacherRow(t *schemas.TeacherScored) teacher {
	return teacher{
		t.GetTurnId(), int64(t.GetHintIndex()), t.GetHint(), t.GetTeacherVersion(), t.GetTemperature(), t.GetLogprobs(), topKOf(t.GetTopK()),
		t.GetLogprobsAtStudent(), t.GetOverlap(), t.GetHintIndexes(),
	}
}

func teacherOf(t *schemas.TeacherScored) *teacher {
	if t == nil {
		return nil
	}
	row := teacherRow(t)
	return &row
}

type hintSelected struct {
	TurnID              string   `parquet:"turn_id"`
	Hint                string   `parquet:"hint"`
	Candidates          []string `parquet:"candidates,list"`
	CandidateIndex      int64    `parquet:"candidate_index"`
	Selection           string   `parquet:"selection,dict"`
	Teacher             *teacher `parquet:"teacher,optional"`
	TeacherAbsentReason *string  `parquet:"teacher_absent_reason,optional,dict"`
	Finder              string   `parquet:"finder,dict"`
	TurnOffset          uint64   `parquet:"turn_offset"`
}

func hintSelectedRow(h *schemas.HintSelected) hintSelected {
	return hintSelected{
		h.GetTurnId(), h.GetHint(), h.GetCandidates(), int64(h.GetCandidateIndex()), h.GetSelection(), teacherOf(h.GetTeacher()), h.TeacherAbsentReason,
		h.GetFinder(), h.GetTurnOffset(),
	}
}

type hintAbsent struct {
	TurnID     string `parquet:"turn_id"`
	Reason     string `parquet:"reason"`
	TurnOffset uint64 `parquet:"turn_offset"`
}

func hintAbsentRow(h *schemas.HintAbsent) hintAbsent {
	return hintAbsent{h.GetTurnId(), h.GetReason(), h.GetTurnOffset()}
}

type sample struct {
	TurnID              string    `parquet:"turn_id"`
	SampleKind          string    `parquet:"sample_kind,dict"`
	Reward              float64   `parquet:"reward"`
	StepReward          *float64  `parquet:"step_reward,optional"`
	Hint                *string   `parquet:"hint,optional"`
	Teacher             *teacher  `parquet:"teacher,optional"`
	TeacherAbsentReason *string   `parquet:"teacher_absent_reason,optional,dict"`
	Response            *message  `parquet:"response,optional"`
	Tokens              *tokens   `parquet:"tokens,optional"`
	Sampling            *sampling `parquet:"sampling,optional"`
	Model               string    `parquet:"model,dict"`
	PolicyVersion       *string   `parquet:"policy_version,optional,dict"`
	User                *string   `parquet:"user,optional,dict"`
	Group               *string   `parquet:"group,optional,dict"`
	TurnIndex           int64     `parquet:"turn_index"`
}

func sampleRow(s *schemas.SampleAssembled) sample {
	return sample{
		s.GetTurnId(), word(s.GetKind(), "SAMPLE_KIND_"), s.GetReward(), s.StepReward, s.Hint, teacherOf(s.GetTeacher()), s.TeacherAbsentReason,
		messageOf(s.GetResponse()), tokensOf(s.GetTokens()), samplingOf(s.GetSampling()), s.GetModel(), s.PolicyVersion, s.User, s.Group,
		int64(s.GetTurnIndex()),
	}
}

type skipped struct {
	TurnID string `parquet:"turn_id"`
	Reason string `parquet:"reason,dict"`
}

func skippedRow(s *schemas.TurnSkipped) skipped { return skipped{s.GetTurnId(), s.GetReason()} }

type update struct {
	Update        uint64   `parquet:"update"`
	ParentVersion string   `parquet:"parent_version,dict"`
	SampleIDs     []string `parquet:"sample_ids,list"`
	Objective     string   `parquet:"objective"`
	Seed          uint64   `parquet:"seed"`
	Engine        string   `parquet:"engine,dict"`
}

func updateRow(u *schemas.UpdateStarted) update {
	return update{u.GetUpdate(), u.GetParentVersion(), u.GetSampleIds(), u.GetObjective(), u.GetSeed(), u.GetEngine()}
}

type metric struct {
	Name  string  `parquet:"name,dict"`
	Value float64 `parquet:"value"`
}

type policy struct {
	Update           uint64   `parquet:"update"`
	UpdateID         string   `parquet:"update_id"`
	ParentVersion    string   `parquet:"parent_version"`
	PEFTSHA256       *string  `parquet:"peft_sha256,optional"`
	GGUFSHA256       *string  `parquet:"gguf_sha256,optional"`
	CheckpointSHA256 *string  `parquet:"checkpoint_sha256,optional"`
	BaseModel        string   `parquet:"base_model,dict"`
	Metrics          []metric `parquet:"metrics,list"`
}

func policyRow(p *schemas.PolicyPublished) policy {
	row := policy{
		Update: p.GetUpdate(), UpdateID: p.GetUpdateId(), ParentVersion: p.GetParentVersion(), PEFTSHA256: hexOf(p.GetPeftSha256()),
		GGUFSHA256: hexOf(p.GetGgufSha256()), CheckpointSHA256: hexOf(p.GetCheckpointSha256()), BaseModel: p.GetBaseModel(),
	}
	for k, v := range p.GetMetrics() {
		row.Metrics = append(row.Metrics, metric{k, v})
	}
	slices.SortFunc(row.Metrics, func(a, b metric) int { return strings.Compare(a.Name, b.Name) })
	return row
}

type rollback struct {
	FromVersion string `parquet:"from_version"`
	ToVersion   string `parquet:"to_version"`
	Reason      string `parquet:"reason"`
	By          string `parquet:"by,dict"`
}

func rollbackRow(p *schemas.PolicyRolledBack) rollback {
	return rollback{p.GetFromVersion(), p.GetToVersion(), p.GetReason(), p.GetBy()}
}

type header struct {
	Key   string `parquet:"key,dict"`
	Value []byte `parquet:"value"`
}

type deadLetter struct {
	Stage           string   `parquet:"stage,dict"`
	Reason          string   `parquet:"reason"`
	OriginTopic     *string  `parquet:"origin_topic,optional,dict"`
	OriginPartition *int64   `parquet:"origin_partition,optional"`
	OriginOffset    *int64   `parquet:"origin_offset,optional"`
	OriginFile      *string  `parquet:"origin_file,optional,dict"`
	OriginLine      *int64   `parquet:"origin_line,optional"`
	Key             []byte   `parquet:"key"`
	Headers         []header `parquet:"headers,list"`
	Value           []byte   `parquet:"value"`
	Truncated       bool     `parquet:"truncated"`
	RecordTimeMs    *int64   `parquet:"record_time_ms,optional"`
}

func deadLetterRow(d *schemas.DeadLettered) deadLetter {
	row := deadLetter{Stage: d.GetStage(), Reason: d.GetReason(), Key: d.GetKey(), Value: d.GetValue(), Truncated: d.GetTruncated(), RecordTimeMs: d.RecordTimeMs}
	if p := d.GetPosition(); p != nil {
		row.OriginTopic, row.OriginPartition, row.OriginOffset = &p.Topic, wide(&p.Partition), signed(&p.Offset)
	}
	if f := d.GetFile(); f != nil {
		row.OriginFile, row.OriginLine = &f.Name, signed(&f.Line)
	}
	for _, h := range d.GetHeaders() {
		row.Headers = append(row.Headers, header{h.GetKey(), h.GetValue()})
	}
	return row
}

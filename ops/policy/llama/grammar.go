package llama

import (
	"errors"
	"math"
	"math/rand/v2"

	"github.com/hybridgroup/yzma/pkg/llama"
)

// objectGrammar is JSON (RFC 8259) with an object at the top, in llama.cpp's notation. White space is bounded: small models love to go on.
const objectGrammar = `root ::= object
value ::= object | array | string | number | "true" | "false" | "null"
object ::= "{" gap (member ("," gap member)*)? "}"
member ::= string gap ":" gap value gap
array ::= "[" gap (element ("," gap element)*)? "]"
element ::= value gap
string ::= "\"" char* "\""
char ::= [^"\\\x00-\x1F] | "\\" (["\\/bfnrt] | "u" hex hex hex hex)
hex ::= [0-9a-fA-F]
number ::= "-"? ("0" | [1-9] [0-9]{0,15}) ("." [0-9]{1,15})? ([eE] [-+]? [0-9]{1,3})?
gap ::= " "? | "\n" [ \t]{0,16}
`

// grammar holds one response to a JSON object. For one goroutine at a time.
type grammar struct {
	native llama.Sampler
	vocab  llama.Vocab
	one    llama.TokenData // what C points to lives in g, which does not move
	set    llama.TokenDataArray
	all    []llama.TokenData
	masked []float32
	again  sampler
}

// newGrammar returns nil where llama.cpp does not take the grammar.
func newGrammar(vocab llama.Vocab) *grammar {
	g := &grammar{native: llama.SamplerInitGrammar(vocab, objectGrammar, "root"), vocab: vocab}
	if g.native == 0 {
		return nil
	}
	return g
}

func (g *grammar) free() { llama.SamplerFree(g.native) }

// draw samples as s would, among the tokens that may come next. Mostly the token that s draws is one: then nothing more is computed.
func (g *grammar) draw(s *sampler, logits []float32, r *Request, rng *rand.Rand) (uint32, error) {
	id := s.draw(logits, r, rng)
	if !g.allows(id) {
		if err := g.mask(logits); err != nil {
			return 0, err
		}
		if err := g.again.read(g.masked, 1, r.Temperature); err != nil {
			return 0, errors.New("no token fits the grammar of JSON")
		}
		id = g.again.draw(g.masked, r, rng)
	}
	if !g.ends(id) {
		llama.SamplerAccept(g.native, llama.Token(id))
	}
	return id, nil
}

// ends says whether a token ends the response; the grammar allows such only after the object.
func (g *grammar) ends(id uint32) bool { return llama.VocabIsEOG(g.vocab, llama.Token(id)) }

func (g *grammar) allows(id uint32) bool {
	g.one = llama.TokenData{Id: llama.Token(id)}
	g.set = llama.TokenDataArray{Data: &g.one, Size: 1, Selected: -1}
	llama.SamplerApply(g.native, &g.set)
	return !math.IsInf(float64(g.one.Logit), -1)
}

// mask copies the logits, with -Inf for what may not come next.
func (g *grammar) mask(logits []float32) error {
	if g.all == nil {
		g.all, g.masked = make([]llama.TokenData, len(logits)), make([]float32, len(logits))
	}
	for i, v := range logits {
		g.all[i] = llama.TokenData{Id: llama.Token(i), Logit: v}
	}
	g.set = llama.TokenDataArray{Data: &g.all[0], Size: uint64(len(g.all)), Selected: -1}
	llama.SamplerApply(g.native, &g.set)
	if g.set.Size != uint64(len(g.all)) {
		return errors.New("llama.cpp changed the number of candidates")
	}
	for i := range g.masked {
		g.masked[i] = float32(math.Inf(-1))
	}
	for _, c := range g.all {
		g.masked[c.Id] = c.Logit
	}
	return nil
}

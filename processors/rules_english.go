package processors

import "strings"

// lexicon is what the rules know of one language: data only. A further language is one more table of this form.
type lexicon struct {
	symbols   map[rune]string
	spellings map[string]string
	joins     map[[2]string]string
	// fillers may stand before the head of a sentence; steps are those of them that open a next step.
	fillers, steps map[string]bool
	stop           map[string]bool
	endings        []string
	negators       map[string]bool
	// pointers are words that stand for what was said before.
	pointers map[string]bool
	contrast map[string]bool
	// verbs begin a request.
	verbs map[string]bool
	// adapt are verbs that change what is there rather than ask for something new.
	adapt map[string]bool

	// praise and neutral are idioms whose words mean something else alone; they are looked for first.
	praise, neutral phraseIndex
	accept          phraseIndex
	// wrong can be negated into acceptance ("not wrong"); correct cannot.
	wrong, correct phraseIndex
	redo, change   phraseIndex
	moveOn         phraseIndex
}

// english is the table of English phrases.
var english = &lexicon{
	symbols: map[rune]string{'👍': "thumbs-up", '👏': "thumbs-up", '🎉': "thumbs-up", '🙏': "thumbs-up", '❤': "thumbs-up", '👎': "thumbs-down", '✅': "thumbs-up", '❌': "thumbs-down"},
	spellings: pairs(`dont don't|doesnt doesn't|didnt didn't|isnt isn't|wasnt wasn't|arent aren't|cant can't|cannot can't|wont won't|thats that's|
		thx thanks|ty thanks|tysm thanks|tks thanks|thnx thanks|thanx thanks|thankyou thanks|u you|ur your|pls please|plz please|okay ok|k ok|
		youre you're|im i'm|ive i've|shouldnt shouldn't|yep yes|yeah yes|yup yes|ya yes|nope no|nah no|gonna going|gr8 great|wrongly wrong|
		whats what's|couldnt couldn't|wouldnt wouldn't|havent haven't|hasnt hasn't|lets let's`),
	joins: contractions(`that_is that's|it_is it's|do_not don't|does_not doesn't|did_not didn't|is_not isn't|was_not wasn't|are_not aren't|can_not can't|
		will_not won't|you_are you're|should_not shouldn't|what_is what's|thank_you thanks|could_not couldn't|has_not hasn't|have_not haven't`),
	fillers: set(`please can could would will you ok so and but actually just maybe perhaps hey hi hello well hmm hm um uh oh ah great thanks cool nice
		perfect alright right now also next then i'd i like want need you to let's kindly yes no instead sorry good awesome excellent wait thumbs-up
		thumbs-down only really still again`),
	steps:    set(`now also next then`),
	stop:     set(`a an the this that these those it its it's that's is are was were be been am of for in on at by with from as or not do does did me my we our your what how which who where when why there here about into some any`),
	endings:  []string{"'s", "ing", "ies", "es", "ed", "s", "ly", "e"},
	negators: set(`not no isn't wasn't aren't don't doesn't didn't never nothing without hardly can't couldn't won't wouldn't none neither nor`),
	pointers: set(`it this that them these those`),
	contrast: set(`but however except although though yet only`),
	verbs: set(`write create build make add implement show give tell explain list find generate draft compute calculate translate summarize summarise run
		open read check look help design plan compare describe fix refactor update install configure set search draw convert sort parse test
		deploy commit push merge review use put change remove delete rename move replace rewrite send book order schedule remind suggest recommend
		define solve prove plot print return include keep format shorten simplify expand don't do try start stop avoid call go let remember ensure be
		skip omit drop mention follow answer respond reply say handle return wrap name pick choose provide extract count group filter analyze analyse
		prepare upload download save load turn cite reference quote round indent document increase decrease reduce lower raise limit swap switch
		combine split merge`),
	adapt: set(`make change rewrite rephrase reword shorten simplify expand remove delete replace rename redo revert undo fix adjust modify tweak correct
		convert reformat format reduce lower raise increase decrease trim cut condense elaborate swap switch update edit improve refine drop omit
		use don't add include skip avoid put keep move restructure round tone`),

	praise: index(`
		no problem
		no problems
		no worries
		no complaints
		no issues
		no errors
		no error
		no further questions
		no more questions
		no that's all|it|fine|perfect|great|good|everything|correct|right|ok
		no it's fine|perfect|great|good|ok
		not bad
		not too bad
		not too shabby
		nothing wrong
		nothing to change|add
		nothing else
		can't complain
		couldn't be better|happier
		couldn't have said|done|put
		couldn't ask for
		can't go wrong
		don't change a|anything
		don't touch it
		wouldn't change a|anything
		no longer fails|crashes|broken|errors|fail|crash|an|a|get|see
		no need
		why didn't i think
		too good
		never mind i|it|that got|works|figured|worked
		that wasn't so|too bad|hard
		you didn't miss|forget
		works without
		without any|a errors|error|problem|problems|issues|hitch
		wrong of me
		my mistake
		my bad
		i was wrong
		i stand corrected
		you're not wrong
		that's not wrong
		that's not a|bad bug|problem|idea|issue
		no notes
		no more errors|issues|problems|warnings|bugs|crashes
		exactly|just|precisely what i|we wanted|needed|meant|had|asked|was|were|need|want
		exactly|just what the
		doesn't|don't|didn't|won't crash|fail|break|hang|happen|error|leak anymore
		sick
		killed it
		nailed it`),
	neutral: index(`
		what's wrong with
		what went wrong
		what is wrong
		error handling
		error message|messages|code|codes|rate
		no idea
		no clue
		no preference
		not sure
		not yet
		no rush
		no hurry
		try again later
		let me try again
		i'll try again
		i will try
		wrong answer|answers on|for
		right now
		right away
		right side|hand|click|column|margin
		good morning|evening|afternoon|night
		great wall|britain
		great grandmother|grandfather
		nice to have
		correct me
		is that|this|it correct|right
		what's the correct|right|best
		the correct|right way
		i'm wrong
		not only
		no matter
		no one
		in no particular
		thanks in advance
		too long didn't
		how great
		cool down
		whether or
		isn't it
		isn't there
		perfect square|number|numbers|squares|score|fit
		correct answer|answers|order
		don't you think
		let's say`),
	accept: index(`
		thanks
		thank
		thumbs-up
		perfect|perfectly
		great
		awesome
		excellent
		brilliant
		fantastic
		amazing
		wonderful
		superb
		lovely
		beautiful
		cool$
		^cool
		nice$
		^nice
		neat$
		^neat
		^good
		good$
		very|really|pretty|so good|helpful|useful|nice
		good job|work|stuff|one|call|point|idea|answer|catch
		well done|put|said|written
		nice job|work|one|catch
		looks|look|sounds|sound|seems good|great|right|perfect|fine|correct|fantastic|ok|better
		lgtm
		ship it
		love it|this|that
		i love|like it|this|that|how
		i really|do|absolutely|quite love|like
		exactly it|right|this|that
		exactly$
		^exactly
		that's it$
		that's right|correct|fine|perfect|better|helpful|good|all
		you're right|correct|awesome|amazing|great
		it|that|this|everything|all works|worked
		works$
		works great|perfectly|fine|well|now|like|for
		that|it|this did|does|solved|fixed|helped|helps|solves|fixes it|that|the|a|lot|me|my
		that did the
		problem solved
		solved$
		fixed$
		passes|pass now
		tests pass
		all|everything green|good
		got it
		makes sense
		that makes sense
		i see$
		understood
		^correct
		correct$
		^right$
		^yes
		agreed
		i agree
		approved
		merged
		much better
		way better
		good enough
		fair enough
		appreciate
		bingo
		impressive
		spot on
		clear now
		very clear
		that's clear
		sweet
		superb
		happy with
		i'll take it
		going with that|this|it
		that's all i
		wow`),
	wrong: index(`
		wrong
		incorrect
		inaccurate
		broken
		broke
		useless
		unhelpful
		nonsense
		garbage
		terrible
		awful
		horrible
		confusing
		mistaken
		false$
		outdated
		fails
		failed
		crashes
		crashed
		hallucinated
		hallucinating`),
	correct: index(`
		^no
		thumbs-down
		^stop
		^wait no
		that's|this|it's|it isn't|not right|correct|what|true|how|it|the|quite|working|good|my|a|an|in|helpful
		isn't right|correct|what|true|how|quite|working
		that's|this isn't|not what
		that's|this|it not|isn't|wasn't it
		not what i|we
		not quite
		not right|correct|true|working|helpful|really|exactly
		not exactly
		doesn't|didn't|don't|won't|can't work|compile|run|build|help|make|match|look|answer|exist|start|load|pass|render|parse|seem
		does not work
		not working
		nothing happens|happened
		still not|doesn't|isn't|fails|failing|broken|wrong|getting|get|the|see|seeing|crashes|have|having|missing|says|shows|errors|nothing|too
		same|another|an|this error|problem|issue|result|exception|bug
		get|getting|got|gives|throws|throwing|raises|see|seeing a|an|the|this|that|another error|exception|traceback|warning|crash|segfault|typeerror|keyerror
		it|that|this fails|crashes|breaks|errors|failed|crashed|hangs
		there's|has|have|is a|an bug|mistake|error|typo|problem|issue
		you missed|forgot|misunderstood|misread|ignored|skipped|omitted|overlooked|broke|deleted|removed|left|misinterpreted|confused|mixed|hallucinated|lied|failed
		you've missed|forgotten|misunderstood|ignored|left|broken
		you didn't|don't|haven't|aren't|keep
		you made a|this|that|it|up
		^it's|they're * not *
		you're wrong|mistaken|missing|confusing|not|ignoring|misunderstanding
		i|we meant|asked|said|told|wanted|specifically|explicitly|needed
		i|we didn't|don't ask|want|need|mean|say|like|think|see|get|tell
		that's|this|it's|it|is a|the|too|completely|totally|just|all wrong|mistake|nonsense|typo|lie|joke
		where|why is|did|are|does the|you|it|my missing|delete|remove|gone|ignore|not|deleted|gone|keep
		why didn't|isn't|doesn't|won't|aren't
		where's the|my
		missing$
		it's|you're|is|are|still missing
		that's missing
		doesn't|didn't include|contain|mention|have|address|handle|follow
		try reading
		read it|the|my again|question|message|file|error|request|instructions|code|requirements
		only i|want|need
		should|must be|have|not|read|say|been|return|use
		shouldn't
		supposed to|be
		makes no sense
		doesn't make
		bad answer|idea|code|job
		^bad
		not good|great|helpful|useful|enough|acceptable|accurate|funny|so
		worse
		disappointed|disappointing
		nope
		what a|the mess|hell|heck
		are you kidding|serious|joking
		come on`),
	redo: index(`
		try again
		try it|that|this again
		once again$
		^redo
		redo it|this|that|the
		do it|this|that again|over
		do over
		start over|again
		from scratch
		one more time
		once more
		^again$
		^again
		regenerate
		rewrite it|this|that|the
		^rewrite
		^rephrase|reword|redraft
		^undo|revert
		undo|revert that|this|it|your|the|those
		roll back
		take another
		another try|attempt|shot|version|go
		give it another
		different answer|version|approach
		something else$`),
	change: index(`
		^make it|this|that|them|the|these|those|sure
		^change|shorten|simplify|expand|adjust|modify|tweak|rename|reformat|trim|condense|swap|switch|restructure|refine|improve|edit|tone|fix
		^correct it|this|that|the|your|these|those
		^remove|delete|drop|omit|skip|cut
		^replace
		^use
		^add|include|put|mention
		^don't
		^avoid
		^keep
		^convert|turn|translate it|this|that|them
		^move it|this|that|the
		^be more|less|shorter|longer|simpler|clearer|bigger|smaller|faster|slower|warmer|nicer|darker|lighter|larger|tighter|friendlier|cleaner|easier|brighter|funnier|stronger|softer|louder|quieter|tidier|punchier|broader|deeper|closer|wider|narrower|higher|lower|politer|stricter|looser|calmer
		^more|less *
		^shorter|longer|simpler|clearer|bigger|smaller|faster|slower|warmer|nicer|darker|lighter|larger|tighter|friendlier|cleaner|easier|brighter|funnier|stronger|softer|louder|quieter|tidier|punchier|broader|deeper|closer|wider|narrower|higher|lower|politer|stricter|looser|calmer
		shorter|longer|simpler|clearer|bigger|smaller|faster|slower|warmer|nicer|darker|lighter|larger|tighter|friendlier|cleaner|easier|brighter|funnier|stronger|softer|louder|quieter|tidier|punchier|broader|deeper|closer|wider|narrower|higher|lower|politer|stricter|looser|calmer please$
		more|less formal|casual|detailed|detail|concise|specific|verbose|technical|friendly|details|examples|polite|professional|precise|please
		in more|less|simpler|plain|bullet|one|fewer|two|three detail|words|english|points|terms|sentence|sentences|language|paragraph|line
		too long|short|verbose|formal|casual|complicated|complex|many|much|vague|generic|wordy|technical|simple|slow|big|small|brief|dense|flowery|informal|robotic|loud|dark|bright
		not detailed|long|short|formal|specific|clear enough
		a bit|little|tad more|less|too|shorter|longer|simpler|clearer|bigger|smaller|faster|slower|warmer|nicer|darker|lighter|larger|tighter|friendlier|cleaner|easier|brighter|funnier|stronger|softer|louder|quieter|tidier|punchier|broader|deeper|closer|wider|narrower|higher|lower|politer|stricter|looser|calmer
		bit too
		instead
		rather than
		without the|any|using|these|those|all
		could|can be more|less|shorter|longer|simpler|clearer|bigger|smaller|faster|slower|warmer|nicer|darker|lighter|larger|tighter|friendlier|cleaner|easier|brighter|funnier|stronger|softer|louder|quieter|tidier|punchier|broader|deeper|closer|wider|narrower|higher|lower|politer|stricter|looser|calmer
		i'd|would|i prefer|rather
		i prefer
		needs to|more|less be
		need more|less
		what about *ing
		fewer *
		no emojis|emoji|bullet|bullets|markdown|jargon|comments|lists|tables|headings
		no more *`),
	moveOn: index(`
		^moving on
		moving on
		move on
		next question|step|topic|task|one|problem|up|item
		another question|one|thing|topic
		new|different|unrelated question|topic|subject|task
		one|last more|other|thing|question thing|question|thing
		one more thing|question
		on to the
		onto the
		next|now up|let's|for|on|that
		go ahead
		proceed
		continue$
		^continue
		carry on
		keep going
		do that
		let's do|go|proceed|continue|start|try|use
		sounds like a
		commit it|this|that|and
		push it|this|that|and
		merge it|this|that
		deploy it|this|that
		^next
		follow up question
		follow-up question
		by the way
		btw`),
}

func set(words string) map[string]bool {
	m := map[string]bool{}
	for _, w := range strings.Fields(words) {
		m[w] = true
	}
	return m
}

// pairs reads "from to|from to".
func pairs(lines string) map[string]string {
	m := map[string]string{}
	for _, p := range strings.Split(lines, "|") {
		f := strings.Fields(p)
		m[f[0]] = f[1]
	}
	return m
}

// contractions reads "first_second to|first_second to".
func contractions(lines string) map[[2]string]string {
	m := map[[2]string]string{}
	for from, to := range pairs(lines) {
		first, second, _ := strings.Cut(from, "_")
		m[[2]string{first, second}] = to
	}
	return m
}

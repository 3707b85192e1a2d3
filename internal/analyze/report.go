package analyze

// Report is what the traffic says. Its JSON names are API: more may be added, none is renamed. Shares are between
// 0 and 1, sizes in Unit, times in seconds; a null means that the input does not say.
type Report struct {
	// The three numbers of the three-line report, over all requests that have a predecessor in their conversation.
	FollowUpTurns       int64    `json:"follow_up_turns"`
	RepeatedPromptShare *float64 `json:"repeated_prompt_share"` // Σ min(previous prompt, this prompt) / Σ this prompt
	LateTurnsShare      *float64 `json:"late_turns_share"`      // follow-ups that began more than the TTL after the previous began
	TTLSeconds          float64  `json:"ttl_seconds"`

	Verdict Verdict `json:"verdict"`

	Unit          string  `json:"unit"` // tokens, characters or bytes
	Requests      int64   `json:"requests"`
	OtherUnit     int64   `json:"requests_in_another_unit"` // counted as turns, left out of sums
	Conversations int64   `json:"conversations"`
	SingleTurn    int64   `json:"single_turn_conversations"`
	Branches      int64   `json:"branches"`        // linked by block ids: second and later continuations of one request
	Duplicates    int64   `json:"duplicate_lines"` // lines that repeat the count of the request before
	SpanSeconds   float64 `json:"span_seconds"`

	Prompt       Sizes        `json:"prompt"`
	Share        Shares       `json:"share"`
	Gaps         Gaps         `json:"gaps"`
	TTL          []TTLPoint   `json:"ttl"`
	Growth       Quantiles    `json:"growth"`       // this prompt minus the previous one
	NewPerTurn   Quantiles    `json:"new_per_turn"` // part of a follow-up's prompt that is not repeated
	TurnsPerConv Quantiles    `json:"turns_per_conversation"`
	Concurrency  Concurrency  `json:"concurrency"`
	Models       []Group      `json:"models"`
	Tenants      []Group      `json:"tenants"`
	Lines        *Lines       `json:"lines"`
	History      *History     `json:"history"`
	Findings     []Finding    `json:"findings"`
	Input        Input        `json:"input"`
	Definitions  []Definition `json:"definitions"`
	LogCached    *LogCached   `json:"log_cached"`
	Identity     Identity     `json:"identity"`
	charts       charts
}

// Verdict is the answer in words.
type Verdict struct {
	Decision string    `json:"decision"` // stop, go-on, cannot-tell
	Summary  string    `json:"summary"`
	Reasons  []string  `json:"reasons"`
	Settings []Setting `json:"settings"`
}

// Setting is a recommended value.
type Setting struct {
	Name  string `json:"name"`
	Value string `json:"value"`
	Why   string `json:"why"`
}

// Definition says what a number means.
type Definition struct {
	Name string `json:"name"`
	Text string `json:"text"`
}

// Sizes are sums over all requests of the report's unit.
type Sizes struct {
	Total      int64     `json:"total"`
	InFollowUp int64     `json:"in_follow_ups"`
	Length     Quantiles `json:"length"`
	Reply      Quantiles `json:"reply_length"`
}

// Shares are the parts of follow-up prompts that were there before.
type Shares struct {
	ByCounts          *float64 `json:"by_counts"`            // as RepeatedPromptShare
	ByCountsWithReply *float64 `json:"by_counts_with_reply"` // min(previous prompt + its reply, this)
	OfAllPrompts      *float64 `json:"by_counts_of_all_prompts"`

	// By content: text, token ids, block ids or the log's own shared-prefix count, over the follow-ups that have it.
	ContentFollowUps int64        `json:"content_follow_ups"`
	Previous         *float64     `json:"content_previous"`            // common prefix with the previous prompt
	PreviousReply    *float64     `json:"content_previous_with_reply"` // … and with the reply behind it
	Best             *float64     `json:"content_best_earlier"`        // the best of all earlier prompts of the conversation
	Blocks           []BlockShare `json:"content_in_blocks"`           // Best, in whole blocks
	BlockSize        int          `json:"block_size"`
	AtBlockSize      *float64     `json:"content_at_block_size"`
}

// BlockShare is what is left of the share when only whole blocks are reused.
type BlockShare struct {
	BlockSize int      `json:"block_size"`
	Share     *float64 `json:"share"` // null if the log's own blocks are coarser and do not divide it
}

// Quantiles of a distribution: the value at rank ⌊n·q/100⌋.
type Quantiles struct {
	Count int64   `json:"count"`
	Mean  float64 `json:"mean"`
	P5    float64 `json:"p5"`
	P25   float64 `json:"p25"`
	P50   float64 `json:"p50"`
	P75   float64 `json:"p75"`
	P90   float64 `json:"p90"`
	P95   float64 `json:"p95"`
	P99   float64 `json:"p99"`
	Max   float64 `json:"max"`
	Exact bool    `json:"exact"` // false: within 0.1 %
}

// Gaps are the times between turns.
type Gaps struct {
	StartToStart Quantiles `json:"start_to_start"`
	// Idle is from the end of the previous reply to this request, not below 0; from its start where its duration is
	// unknown. Empty if no duration is known.
	Idle     Quantiles `json:"idle"`
	IdleLate *float64  `json:"idle_later_than_ttl_share"`
}

// TTLPoint says what keeping the blocks of a turn for a time would do.
type TTLPoint struct {
	Seconds       float64  `json:"seconds"`
	TurnsInTime   *float64 `json:"turns_in_time_share"`
	RepeatedHeld  *float64 `json:"repeated_held_share"` // weighted by what is repeated
	PinnedMean    *float64 `json:"pinned_mean"`         // held by turns that ended, mean over time
	PinnedPeak    *int64   `json:"pinned_peak"`
	PinnedToInUse *float64 `json:"pinned_to_in_use"` // pinned·seconds over in-use·seconds of running requests
	PinnedPeakGB  *float64 `json:"pinned_peak_gb"`   // with Options.KVBytesPerToken
}

// Concurrency says how much goes on at a time.
type Concurrency struct {
	Known         bool   `json:"known"`
	WhyNot        string `json:"why_not,omitempty"`
	Conversations Level  `json:"conversations"` // between their first and last request
	Running       Level  `json:"running_requests"`
	OpenPrompts   Level  `json:"open_prompts"` // size of the latest prompt and reply of all open conversations
	RequestRate   Level  `json:"requests_per_minute"`
	// NewPerSecond is the part of all prompts that no earlier turn had, per second of the span.
	NewPerSecond float64 `json:"new_per_second"`
}

// Level is a quantity over time.
type Level struct {
	Mean              float64 `json:"mean"`
	P50               int64   `json:"p50"`
	P95               int64   `json:"p95"`
	Max               int64   `json:"max"`
	ResolutionSeconds float64 `json:"resolution_seconds"`
}

// Group is one model or tenant. Tenants are salted hashes.
type Group struct {
	Name                string   `json:"name"`
	Requests            int64    `json:"requests"`
	FollowUpTurns       int64    `json:"follow_up_turns"`
	Prompt              int64    `json:"prompt"`
	RepeatedPromptShare *float64 `json:"repeated_prompt_share"`
	ContentBest         *float64 `json:"content_best_earlier"`
	LateTurnsShare      *float64 `json:"late_turns_share"`
}

// Lines tells main lines from what runs beside them under the same conversation id.
type Lines struct {
	Conversations   int64    `json:"conversations_with_several"`
	SideRequests    int64    `json:"side_requests"` // requests outside their conversation's main line
	SidePrompt      int64    `json:"side_prompt"`
	SideQueries     int64    `json:"side_queries"` // lines of one request
	SideQueryPrompt int64    `json:"side_query_prompt"`
	BetterEarlier   int64    `json:"better_earlier_than_previous"`
	BetterShare     *float64 `json:"better_earlier_share"`
	MainLineRepeats *float64 `json:"main_line_repeated_share"`
}

// History says how prompts differ from their predecessors, where content is known.
type History struct {
	Changed     int64    `json:"changed"` // the previous prompt is not the beginning of this one
	ChangedHalf int64    `json:"changed_in_first_half"`
	Shrunk      int64    `json:"shrunk"`
	Identical   int64    `json:"identical"`
	ShortGrowth int64    `json:"grew_less_than_reply"` // history kept, and the prompt grew by less than the reply's length
	Lost        int64    `json:"lost"`                 // of min(previous, this), behind the break
	LostShare   *float64 `json:"lost_share"`           // of the repeated share by counts
}

// Finding is a pattern, with what it costs.
type Finding struct {
	Code       string   `json:"code"` // lower-kebab, stable
	Text       string   `json:"text"`
	Advice     string   `json:"advice"`
	FollowUps  int64    `json:"follow_ups"`
	Lost       int64    `json:"lost"`       // prompt that would have been repeated without it
	LostShare  *float64 `json:"lost_share"` // of the prompts of all follow-ups with content
	Offset     *int64   `json:"offset"`     // median, from the start of the prompt
	Length     *int64   `json:"length"`     // median, of what changed, in characters or token ids
	Moves      *int64   `json:"moves"`      // median change of the offset from one turn to the next
	In         string   `json:"in,omitempty"`
	Resolution string   `json:"resolution,omitempty"`
	Example    string   `json:"example,omitempty"` // salted hash of a conversation
}

// Identity says where conversations come from.
type Identity struct {
	ByField   int64            `json:"requests_by_field"`
	ByContent int64            `json:"requests_by_content"`
	None      int64            `json:"requests_without_either"`
	Fields    map[string]int64 `json:"fields"`
	Forgotten int64            `json:"forgotten"` // hashes dropped for memory while linking
}

// LogCached is what the log's own cached counts say.
type LogCached struct {
	Requests int64    `json:"requests"`
	Share    *float64 `json:"share"` // Σ cached / Σ prompt over requests with a count
}

// Input says what was read.
type Input struct {
	Files    []string         `json:"files"`
	Bytes    int64            `json:"bytes"`
	Lines    int64            `json:"lines"`
	Formats  map[string]int64 `json:"formats"`
	Bad      []Issue          `json:"bad"`
	BadLines int64            `json:"bad_lines"`
	Skipped  []Issue          `json:"skipped"`
	Failed   []string         `json:"failed"` // inputs that could not be read to their end, and why
	Spilled  int64            `json:"spilled_bytes"`
	Limited  int64            `json:"comparisons_limited"` // requests not compared with all earlier ones, for memory
}

// Issue counts lines that were not used, for one reason.
type Issue struct {
	Reason string `json:"reason"`
	Count  int64  `json:"count"`
	File   string `json:"first_file"`
	Line   int64  `json:"first_line"`
}

package price

import "time"

// An append puts a turn's new tokens on D, whose other streams wait meanwhile. And D computes the whole
// prompt if it no longer has what came before, which no engine refuses to do: so D is asked only shortly
// after it served the conversation, while it has room.
const (
	AppendTokens  = 2048             // at most, at once
	AppendsAtOnce = 1                // on one D
	AppendAge     = 60 * time.Second // of the conversation's last turn, at most
	AppendUsage   = 0.6              // of D's pool in use, at most
	AppendStall   = 120              // ms that one other stream may wait for its next token
	AppendPremium = 20               // ms that an append must save
	// StallWeight is what a millisecond that another stream waits counts, in milliseconds of the turn.
	StallWeight = 1
)

package analyze

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/tarik-kv/tarik/internal/bodyedit"
)

// slot is what a member of a log line means.
type slot uint8

const (
	noSlot slot = iota

	// Who. Lower comes first when several are there.
	slotConv     // a name of the conversation
	slotSession  // a name of a session
	slotAgentID  // a sub-agent inside a session, part of its name
	slotTenant   // key, team, tenant, organisation
	slotUser     // end user, a tenant only where nothing better is there
	slotModel    //
	slotOperator // the operator's own choice of a conversation's name, by Options.Fields

	// When.
	slotStart
	slotTime // when the line is about, begin or end
	slotEnd
	slotMsec        // nginx: seconds with milliseconds, at the end of the request
	slotDuration    // unit by the format
	slotDurationMs  //
	slotDurationS   //
	slotRequestTime // nginx: seconds
	slotStartNano   // OTLP
	slotEndNano     //

	// How much.
	slotPrompt      // the whole prompt, cached part included: OpenAI's prompt_tokens and its kin
	slotInput       // Anthropic's and OpenAI Responses' input_tokens: whole or without the cached part
	slotOutput      //
	slotTotal       //
	slotCachedIn    // part of the prompt or input that was cached, included in it
	slotCacheRead   // cached part, not included in slotInput
	slotCacheWrite  // written to the cache, not included in slotInput
	slotDetails     // prompt_tokens_details, input_tokens_details
	slotBytes       // request bytes in access logs
	slotShared      // tokens shared with the previous request
	slotUsage       // an object of the above
	slotUsageDetail // Langfuse's usageDetails

	// Content.
	slotMessages
	slotSystem
	slotTools
	slotPromptText
	slotInputText
	slotOutputText
	slotTokenIDs
	slotHashIDs
	slotBlockSize
	slotKeep
	slotNew
	slotChoices
	slotContent

	// Envelopes.
	slotRequest
	slotResponse
	slotBody
	slotMetadata
	slotHeaders
	slotMessage
	slotPayload
	slotLog
	slotData
	slotRequests
	slotSpans
	slotRequestID
	slotTraceID

	// What kind of line it is.
	slotStatus
	slotMethod
	slotPath
	slotType
	slotArm
	slotTurnNumber
	slotPLocal
	slotPPulled
	slotID
	slotBytesSent

	slots
)

// slotNames maps names to slots. A name is compared in lower case and without "_", "-", "." and " ", so that
// session_id, sessionId, X-Session-ID and http_x_session_id need one or two entries.
//
// Names of users, requests and traces are no names of conversations.
var slotNames = func() map[string]slot {
	m := map[string]slot{}
	for s, list := range map[slot]string{
		slotConv:        "conversationid conversation xconversationid genaiconversationid chatid threadid xthreadid",
		slotSession:     "sessionid xsessionid xdynamosessionid session xclaudecodesessionid xsessionaffinity xopencodesession xqwencodesessionid xlitellmsessionid litellmsessionid agentsessionid langfusesessionid userapisessionid",
		slotAgentID:     "xclaudecodeagentid agentid",
		slotTenant:      "tenant tenantid apikeyhash userapikeyhash userapikeyteamid teamid organization organizationid orgid projectid xtenantid",
		slotUser:        "enduser userid endusertrackid",
		slotModel:       "model modelname genairequestmodel genairesponsemodel genaimodelname llmmodelname modelgroup xaiegmodel requestmodel providedmodelname",
		slotStart:       "starttime startedat start requeststarttime arrivaltime createdat",
		slotTime:        "ts timestamp time datetime date @timestamp timeiso8601 timelocal created",
		slotEnd:         "endtime endedat end finishedat",
		slotMsec:        "msec",
		slotDuration:    "duration latency elapsedtime",
		slotDurationMs:  "durationms latencyms totalms elapsedms requestdurationms",
		slotDurationS:   "durations durationseconds latencys latencyseconds apitime e2es",
		slotRequestTime: "requesttime",
		slotStartNano:   "starttimeunixnano",
		slotEndNano:     "endtimeunixnano",
		slotPrompt: "prompttokens inputlength contexttokens requesttokens prompttokencount inputtoken tokensin numprompttokens promptlen promptlength " +
			"genaitokensinput genaiusageinputtokens genaiusageprompttokens llmtokencountprompt llmusageprompttokens llminputtoken inputlen",
		slotInput: "inputtokens",
		slotOutput: "completiontokens outputtokens outputlength generatedtokens responsetokens candidatestokencount outputtoken tokensout numgenerationtokens " +
			"genaitokensoutput genaiusageoutputtokens genaiusagecompletiontokens llmtokencountcompletion llmusagecompletiontokens llmoutputtoken outputlen",
		slotTotal: "totaltokens totaltokencount genaitokenstotal llmusagetotaltokens",
		slotCachedIn: "cachedtokens cachedinputtokens cachedcontenttokencount numcachedtokens genaiusagecachereadinputtokens " +
			"llmtokencountpromptdetailscacheread cachedprompttokens",
		slotCacheRead:   "cachereadinputtokens cachereadinputtokencount",
		slotCacheWrite:  "cachecreationinputtokens cachewriteinputtokens cachewriteinputtokencount",
		slotDetails:     "prompttokensdetails inputtokensdetails inputtokendetails",
		slotBytes:       "bytesreceived requestlength requestbytes reqsize",
		slotBytesSent:   "bytessent bodybytessent",
		slotShared:      "sharedprefixtokens",
		slotUsage:       "usage usagemetadata tokenusage lasttokenusage",
		slotUsageDetail: "usagedetails",
		slotMessages:    "messages genaiinputmessages inputmessages",
		slotSystem:      "system instructions genaisysteminstructions systemprompt",
		slotTools:       "tools genaitooldefinitions",
		slotPromptText:  "prompt",
		slotInputText:   "input inputvalue",
		slotOutputText:  "output outputvalue genaioutputmessages completion",
		slotTokenIDs:    "prompttokenids inputids",
		slotHashIDs:     "hashids",
		slotBlockSize:   "blocksize",
		slotKeep:        "keep",
		slotNew:         "new",
		slotChoices:     "choices",
		slotContent:     "content",
		slotRequest:     "request requestbody req proxyserverrequest requestjson inputbody",
		slotResponse:    "response responsebody resp responsejson",
		slotBody:        "body",
		slotMetadata:    "metadata attributes extra labels context",
		slotHeaders:     "headers requestheaders",
		slotMessage:     "message",
		slotPayload:     "payload info",
		slotLog:         "log",
		slotData:        "data observations items",
		slotRequests:    "requests",
		slotSpans:       "resourcespans scopespans instrumentationlibraryspans spans",
		slotRequestID:   "requestid xrequestid",
		slotTraceID:     "traceid",
		slotStatus:      "status responsecode statuscode httpstatuscode",
		slotMethod:      "method requestmethod",
		slotPath:        "path uri requesturi url xenvoyoriginalpath endpoint requestpath",
		slotType:        "type",
		slotArm:         "arm",
		slotTurnNumber:  "turnnumber",
		slotPLocal:      "plocaltokens",
		slotPPulled:     "ppulledtokens",
		slotID:          "id",
	} {
		for _, n := range strings.Fields(list) {
			if old, ok := m[n]; ok {
				panic(fmt.Sprintf("BUG: name %q is in slots %d and %d", n, old, s))
			}
			m[n] = s
		}
	}
	return m
}()

// prefixes are what servers put in front of the name of a header they log.
var prefixes = []string{"http", "req", "requestheader", "header", "senthttp"}

// lookupSlot returns the slot of a member's name, unescaped or not.
func lookupSlot(name []byte) slot {
	var room [64]byte
	b := room[:0]
	for _, c := range name {
		switch {
		case c == '_' || c == '-' || c == '.' || c == ' ':
		case 'A' <= c && c <= 'Z':
			b = append(b, c|0x20)
		default:
			b = append(b, c)
		}
		if len(b) == len(room) {
			return noSlot
		}
	}
	if s, ok := slotNames[string(b)]; ok {
		return s
	}
	for _, p := range prefixes {
		if rest, ok := bytes.CutPrefix(b, []byte(p)); ok {
			if s := slotNames[string(rest)]; s == slotConv || s == slotSession || s == slotAgentID || s == slotTenant {
				return s
			}
		}
	}
	return noSlot
}

// fields holds the raw values of one JSON object by what they mean. Where two members mean the same, the first
// that is not null wins.
type fields struct {
	v    [slots][]byte
	used [24]slot
	n    int
	more bool
}

func (f *fields) reset() {
	if f.more {
		f.v = [slots][]byte{}
	} else {
		for _, s := range f.used[:f.n] {
			f.v[s] = nil
		}
	}
	f.n, f.more = 0, false
}

func (f *fields) set(s slot, raw []byte) {
	if s == noSlot || len(raw) == 0 || f.v[s] != nil || bodyedit.IsNull(raw) {
		return
	}
	if (string(raw) == `""` || string(raw) == `"-"`) && s != slotInputText && s != slotPromptText {
		return // access logs write these for what a request does not have
	}
	f.v[s] = raw
	if f.n < len(f.used) {
		f.used[f.n] = s
		f.n++
	} else {
		f.more = true
	}
}

func (f *fields) has(list ...slot) bool {
	for _, s := range list {
		if f.v[s] == nil {
			return false
		}
	}
	return true
}

// count returns a size: a JSON number that is a whole number of at most 2^40, or a string with one. Counts that
// are negative or absurd are errors of the log.
func count(raw []byte) (int64, bool) {
	if len(raw) > 1 && raw[0] == '"' {
		raw = raw[1 : len(raw)-1]
	}
	n, ok := bodyedit.Int(raw)
	if !ok {
		f, isFloat := bodyedit.Float(raw)
		if n = int64(f); !isFloat || f < 0 || f > 1<<40 || float64(n) != f {
			return 0, false
		}
	}
	return n, n >= 0 && n <= 1<<40
}

// header returns the columns of a CSV header, nil if line is none: it must name a time and a size.
func header(line []byte) []slot {
	cells := splitCSV(nil, line)
	if len(cells) < 2 {
		return nil
	}
	columns := make([]slot, len(cells))
	var at, size bool
	for i, c := range cells {
		s := lookupSlot(c)
		at = at || s == slotTime || s == slotStart
		size = size || s == slotPrompt || s == slotInput || s == slotBytes
		columns[i] = s
	}
	if !at || !size {
		return nil
	}
	return columns
}

// splitCSV cuts a line of CSV into cells, without quotes around them.
func splitCSV(cells [][]byte, line []byte) [][]byte {
	line = bytes.TrimRight(line, "\r\n")
	for {
		if len(line) > 0 && line[0] == '"' {
			var cell []byte
			rest := line[1:]
			for {
				q := bytes.IndexByte(rest, '"')
				if q < 0 {
					return nil
				}
				cell = append(cell, rest[:q]...)
				rest = rest[q+1:]
				if len(rest) == 0 || rest[0] != '"' {
					break
				}
				cell = append(cell, '"')
				rest = rest[1:]
			}
			cells = append(cells, cell)
			if len(rest) == 0 {
				return cells
			}
			if rest[0] != ',' {
				return nil
			}
			line = rest[1:]
			continue
		}
		i := bytes.IndexByte(line, ',')
		if i < 0 {
			return append(cells, line)
		}
		cells = append(cells, line[:i])
		line = line[i+1:]
	}
}

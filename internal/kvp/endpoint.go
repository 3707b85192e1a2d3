package kvp

// Endpoint is one of the engine's HTTP endpoints that generate.
type Endpoint uint8

// The endpoints a router serves.
const (
	Chat        Endpoint = iota // /v1/chat/completions
	Completions                 // /v1/completions
	Responses                   // /v1/responses
	Messages                    // /v1/messages
)

// Path is the path of the endpoint on an engine.
func (e Endpoint) Path() string {
	return [...]string{"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"}[e]
}

// String is the short name used in logs and metrics.
func (e Endpoint) String() string {
	return [...]string{"chat", "completions", "responses", "messages"}[e]
}

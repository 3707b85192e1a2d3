package api

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/tarik-kv/tarik/internal/refengine/engine"
)

// apiError is a refusal or failure in OpenAI's form. It is the only error that reaches a client.
type apiError struct {
	status  int
	typ     string
	message string
	param   string // "" is null
}

func (e *apiError) Error() string { return fmt.Sprintf("%d %s: %s", e.status, e.typ, e.message) }

// json returns {"error":{…}}, members in vLLM's order.
func (e *apiError) json() []byte {
	b := append([]byte(nil), `{"error":{"message":`...)
	b = appendString(b, e.message)
	b = append(b, `,"type":`...)
	b = appendString(b, e.typ)
	b = append(b, `,"param":`...)
	if e.param == "" {
		b = append(b, "null"...)
	} else {
		b = appendString(b, e.param)
	}
	b = append(b, `,"code":`...)
	b = appendInt(b, e.status)
	return append(b, "}}"...)
}

// anthropic returns {"type":"error","error":{…}}: what the messages endpoint says of errors found after the
// schema. The types are vLLM's own words, not Anthropic's.
func (e *apiError) anthropic() []byte {
	typ := e.typ
	if typ == schemaErrorType {
		typ = "BadRequestError" // of the chat that the message was turned into
	}
	b := append([]byte(nil), `{"type":"error","error":{"type":`...)
	b = appendString(b, typ)
	b = append(b, `,"message":`...)
	b = appendString(b, e.message)
	return append(b, "}}"...)
}

// schemaErrorType is the type of errors of a body that does not fit its schema.
const schemaErrorType = "Bad Request"

// badRequest is a request that was understood and refused.
func badRequest(param, format string, args ...any) *apiError {
	return &apiError{http.StatusBadRequest, "BadRequestError", fmt.Sprintf(format, args...), param}
}

// invalidBody is a request that does not fit its schema. vLLM words these as its validation library
// does and gives them another type than the refusals that follow.
func invalidBody(param, kind, loc, message string) *apiError {
	if loc == "" {
		loc = "('body',)"
	} else {
		loc = "('body', '" + loc + "')"
	}
	text := fmt.Sprintf("1 validation error:\n  {'type': '%s', 'loc': %s, 'msg': '%s'}", kind, loc, message)
	return &apiError{http.StatusBadRequest, schemaErrorType, text, param}
}

// invalidValue is a rule about the body as a whole, or about fields that exclude each other.
func invalidValue(param, format string, args ...any) *apiError {
	return invalidBody(param, "value_error", "", "Value error, "+fmt.Sprintf(format, args...))
}

// internalError is what every failure inside the engine looks like from outside: an expired handle, an
// unknown engine and a dead port are told apart only by time and by counters.
func internalError() *apiError {
	return &apiError{http.StatusInternalServerError, "InternalServerError", "Internal server error", ""}
}

// engineError is what a client sees of an error of the engine.
//
// An engine that was killed is a process that is gone: the connection breaks, nothing is answered.
func (s *Server) engineError(err error) *apiError {
	var tooLong *engine.PromptTooLongError
	switch {
	case errors.Is(err, engine.ErrKilled):
		panic(http.ErrAbortHandler)
	case errors.Is(err, engine.ErrDead):
		e := internalError()
		e.message = "EngineCore encountered an issue. See stack trace (above) for the root cause."
		return e
	case errors.As(err, &tooLong):
		return badRequest("input_tokens", "%s", err)
	case errors.Is(err, engine.ErrRequest), errors.Is(err, engine.ErrDuplicate):
		return badRequest("", "%s", err)
	}
	return internalError()
}

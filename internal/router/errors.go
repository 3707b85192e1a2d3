package router

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"syscall"

	"github.com/tarik-kv/tarik/internal/kvp"
)

// failure is an answer that says no. The engines' own failures are passed on as they are; these
// are for what no engine has answered.
type failure struct {
	status  int
	message string // what is wrong, and what to do about it
	param   string // the request field, "" for none
	code    string // stable name
	// anthropic: the client speaks Anthropic's dialect and gets errors in it.
	anthropic bool
}

// in returns f as a client of this endpoint expects errors.
func (f *failure) in(ep kvp.Endpoint) *failure {
	f.anthropic = ep == kvp.Messages
	return f
}

// at returns f as a client of this path expects errors.
func (f *failure) at(path string) *failure {
	if path == kvp.Messages.Path() || strings.HasPrefix(path, kvp.Messages.Path()+"/") {
		return f.in(kvp.Messages)
	}
	return f
}

// anthropicKind is Anthropic's word for the class of an error.
func (f *failure) anthropicKind() string {
	switch {
	case f.status == http.StatusNotFound:
		return "not_found_error"
	case f.status == http.StatusRequestEntityTooLarge:
		return "request_too_large"
	case f.status == http.StatusForbidden:
		return "permission_error"
	case f.status < 500:
		return "invalid_request_error"
	case f.status == http.StatusServiceUnavailable:
		return "overloaded_error"
	}
	return "api_error"
}

func (f *failure) Error() string { return f.message }

// kind is OpenAI's word for the class of an error.
func (f *failure) kind() string {
	switch {
	case f.status == http.StatusNotFound:
		return "NotFoundError"
	case f.status == http.StatusForbidden:
		return "PermissionDeniedError"
	case f.status < 500:
		return "BadRequestError"
	case f.status == http.StatusInternalServerError:
		return "InternalServerError"
	case f.status == http.StatusServiceUnavailable:
		return "ServiceUnavailableError"
	}
	return "BadGatewayError"
}

// body is the error object in the client's dialect.
func (f *failure) body() []byte {
	if f.anthropic {
		b := append([]byte(`{"type":"error","error":{"type":`), quote(f.anthropicKind())...)
		return append(append(append(b, `,"message":`...), quote(f.message)...), "}}"...)
	}
	type object struct {
		Message string  `json:"message"`
		Type    string  `json:"type"`
		Param   *string `json:"param"`
		Code    string  `json:"code"`
	}
	o := object{Message: f.message, Type: f.kind(), Code: f.code}
	if f.param != "" {
		o.Param = &f.param
	}
	b, err := json.Marshal(map[string]object{"error": o})
	if err != nil {
		panic("BUG: router: error object: " + err.Error())
	}
	return b
}

func (f *failure) write(w http.ResponseWriter) {
	b := f.body()
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(b)))
	if f.status == http.StatusServiceUnavailable {
		h.Set("Retry-After", "2")
	}
	w.WriteHeader(f.status)
	_, _ = w.Write(b) // the client has left
}

// event is the failure as the last event of a stream that has begun.
func (f *failure) event() []byte {
	if f.anthropic {
		return append(append([]byte("event: error\ndata: "), f.body()...), "\n\n"...)
	}
	return append(append([]byte("data: "), f.body()...), "\n\n"...)
}

// engineDown is the answer while an engine is not there. Where it should be is for operators: GET
// /engines of the admin listener.
func engineDown(what string) *failure {
	return &failure{status: http.StatusServiceUnavailable, code: "engine-down", message: what + "; it may be starting, try again"}
}

// cause says why a call failed, without the addresses that Go's errors carry.
func cause(err error) string {
	var (
		dns       *net.DNSError
		op        *net.OpError
		transport *url.Error
	)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return "it took too long"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "connection refused"
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return "the connection broke"
	case errors.As(err, &dns):
		return "its name does not resolve"
	case errors.As(err, &op), errors.As(err, &transport):
		return "the connection failed"
	}
	return err.Error()
}

func badRequest(param, message string) *failure {
	return &failure{status: http.StatusBadRequest, message: message, param: param, code: "bad-request"}
}

package api

import "net/http"

// scaleOut guards an endpoint that needs --enable-scale-out since 0.30.
func (s *Server) scaleOut(h apiHandler) apiHandler {
	return func(w http.ResponseWriter, r *http.Request) *apiError {
		if s.rel.scaleOutFlag && !s.opts.EnableScaleOut {
			return &apiError{
				http.StatusForbidden, "PermissionDeniedError",
				"Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable them.", "",
			}
		}
		return h(w, r)
	}
}

// renderChatRoute says what the chat endpoint would have sent to the engine.
func (s *Server) renderChatRoute(w http.ResponseWriter, r *http.Request) *apiError {
	body, _, err := s.receive(w, r)
	if err != nil {
		return err
	}
	q, err := decodeChat(body, s.rel)
	if err == nil {
		err = s.checkModel(q.model)
	}
	var ids []int32
	if err == nil {
		ids, _, err = s.chatPrompt(q)
	}
	if err != nil {
		return err
	}
	return s.renderedChat(w, "chatcmpl-"+s.requestID(r, q.requestID), q, ids)
}

// renderMessagesRoute is the same for a message. Its errors have OpenAI's form.
func (s *Server) renderMessagesRoute(w http.ResponseWriter, r *http.Request) *apiError {
	body, _, err := s.receive(w, r)
	if err != nil {
		return err
	}
	m, err := decodeMessages(body, s.rel, false)
	if err != nil {
		return err
	}
	q, ids, _, err := s.messagesChat(m)
	if err != nil {
		return err
	}
	return s.renderedChat(w, "chatcmpl-"+s.requestID(r, ""), q, ids)
}

func (s *Server) renderedChat(w http.ResponseWriter, id string, q *chatRequest, ids []int32) *apiError {
	if q.maxTokens == 0 {
		q.maxTokens = s.maxModelLen - len(ids)
	}
	if err := q.check(); err != nil {
		return err
	}
	b := s.appendRendered(nil, id, ids, &q.common, func(b []byte) []byte {
		b = append(b, `{"tools":`...)
		b = appendRaw(b, q.tools)
		b = append(b, `,"tool_choice":`...)
		b = appendStringOrNull(b, q.toolChoice)
		b = append(b, `,"parallel_tool_calls":`...)
		b = appendBool(b, q.parallelTools)
		b = append(b, `,"include_reasoning":`...)
		b = appendBool(b, q.includeReason)
		b = append(b, `,"chat_template_kwargs":{"cohere_format":"cmd4","add_generation_prompt":`...)
		b = appendBool(b, q.addPrompt)
		b = append(b, `,"continue_final_message":`...)
		b = appendBool(b, q.continueFinal)
		return append(b, `},"history_tool_call_cnt":0}`...)
	})
	writeJSON(w, http.StatusOK, b)
	return nil
}

// renderResponsesRoute is the same for a response.
func (s *Server) renderResponsesRoute(w http.ResponseWriter, r *http.Request) *apiError {
	body, _, err := s.receive(w, r)
	if err != nil {
		return err
	}
	q, err := decodeResponses(body, s.rel)
	if err != nil {
		return err
	}
	ids, _, err := s.responsesPrompt(q)
	if err == nil {
		err = q.check()
	}
	if err != nil {
		return err
	}
	q.extraArgs = true
	b := s.appendRendered(nil, s.responseID(q), ids, &q.common, func(b []byte) []byte { return append(b, "null"...) })
	writeJSON(w, http.StatusOK, b)
	return nil
}

// renderCompletionRoute is the same for completions: a list with one entry per prompt.
func (s *Server) renderCompletionRoute(w http.ResponseWriter, r *http.Request) *apiError {
	body, _, err := s.receive(w, r)
	if err != nil {
		return err
	}
	q, err := decodeCompletion(body, s.rel)
	if err == nil {
		err = s.checkModel(q.model)
	}
	if err != nil {
		return err
	}
	id := "cmpl-" + s.requestID(r, q.requestID)
	b := []byte{'['}
	for i, p := range q.prompts {
		ids, _, err := s.completionPrompt(q, p)
		if err == nil {
			c := q.sampling
			c.maxTokens = max(c.maxTokens, 1)
			err = c.check()
		}
		if err != nil {
			return err
		}
		if i > 0 {
			b = append(b, ',')
		}
		b = s.appendRendered(b, id, ids, &q.common, func(b []byte) []byte { return append(b, "null"...) })
	}
	writeJSON(w, http.StatusOK, append(b, ']'))
	return nil
}

// appendRendered appends one rendered request.
func (s *Server) appendRendered(b []byte, id string, ids []int32, q *common, parseContext func([]byte) []byte) []byte {
	b = append(b, `{"request_id":`...)
	b = appendString(b, id)
	b = append(b, `,"token_ids":`...)
	b = appendIDs(b, ids)
	b = append(b, `,"token_offsets":null,"features":null,"content_parts":null,"sampling_params":`...)
	b = appendSamplingParams(b, q)
	b = append(b, `,"model":`...)
	b = appendString(b, s.opts.ModelName)
	b = append(b, `,"reasoning_ended":null,"reasoning_parser_kwargs":null,"return_token_ids":`...)
	if q.returnTokenIDs {
		b = append(b, "true"...)
	} else {
		b = append(b, "null"...)
	}
	b = append(b, `,"output_mode":"tokens","parse_context":`...)
	b = parseContext(b)
	b = append(b, `,"stream":`...)
	b = appendBool(b, q.stream)
	b = append(b, `,"stream_options":`...)
	b = appendRaw(b, q.streamOptions)
	b = append(b, `,"cache_salt":`...)
	if q.salt == "" {
		b = append(b, "null"...)
	} else {
		b = appendString(b, q.salt)
	}
	b = append(b, `,"priority":0,`...)
	b = appendParams(b, q.kv)
	return append(b, `,"ec_transfer_params":null}`...)
}

// appendSamplingParams appends what differs from the engine's defaults, in its order. Greedy requests have
// no top_p and min_p: they would change nothing.
func appendSamplingParams(b []byte, q *common) []byte {
	b = append(b, '{')
	if q.n != 1 {
		b = append(b, `"n":`...)
		b = append(appendInt(b, q.n), ',')
	}
	b = append(b, `"presence_penalty":0.0,"frequency_penalty":0.0,"repetition_penalty":1.0,"temperature":`...)
	b = appendFloat(b, q.temperature)
	if q.temperature > 0 {
		b = append(b, `,"top_p":`...)
		b = appendFloat(b, q.topP)
		if q.topK > 0 {
			b = append(b, `,"top_k":`...)
			b = appendInt(b, q.topK)
		}
		b = append(b, `,"min_p":0.0`...)
	}
	if q.seed != nil {
		b = append(b, `,"seed":`...)
		b = appendInt(b, int(*q.seed))
	}
	b = append(b, `,"stop":[`...)
	for i, stop := range q.stop {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendString(b, stop)
	}
	b = append(b, `],"stop_token_ids":`...)
	b = appendIDs(b, append([]int32{}, q.stopTokenIDs...))
	if q.ignoreEOS {
		b = append(b, `,"ignore_eos":true`...)
	}
	b = append(b, `,"max_tokens":`...)
	b = appendInt(b, max(q.maxTokens, 1))
	if q.minTokens > 0 {
		b = append(b, `,"min_tokens":`...)
		b = appendInt(b, q.minTokens)
	}
	if q.logprobs >= 0 {
		b = append(b, `,"logprobs":`...)
		b = appendInt(b, q.logprobs)
	}
	if q.promptLogprobs >= 0 {
		b = append(b, `,"prompt_logprobs":`...)
		b = appendInt(b, q.promptLogprobs)
	}
	kind := 2 // the whole reply at once
	if q.stream {
		kind = 1 // what was added by each step
	}
	b = append(b, `,"output_kind":`...)
	b = appendInt(b, kind)
	b = append(b, `,"skip_clone":true`...)
	switch {
	case q.kv != nil:
		b = append(b, `,"extra_args":{`...)
		b = append(appendParams(b, q.kv), '}')
	case q.extraArgs:
		b = append(b, `,"extra_args":{}`...)
	}
	return append(b, `,"bad_words":[],"skip_reading_prefix_cache":false}`...)
}

func appendBool(b []byte, v bool) []byte {
	if v {
		return append(b, "true"...)
	}
	return append(b, "false"...)
}

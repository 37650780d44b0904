//! Chat templates, as seeds and for messages to be rendered by.

/// Templates that between them use what the supported families' templates use.
pub const TEMPLATES: [&str; 7] = [
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    "{{ bos_token }}{%- if messages[0]['role'] == 'system' -%}{%- set first = messages[0]['content'] | trim -%}{%- set loop_messages = messages[1:] -%}{%- else -%}{%- set loop_messages = messages -%}{%- endif -%}{%- for m in loop_messages -%}{%- if (m['role'] == 'user') != (loop.index0 % 2 == 0) -%}{{ raise_exception('roles must alternate') }}{%- endif -%}{{ m.content if loop.last else m.content ~ eos_token }}{%- endfor -%}",
    "{%- set ns = namespace(at=0, seen=false) -%}{%- for m in messages[::-1] -%}{%- set ns.at = ns.at + loop.index0 -%}{%- if m.content is string and not ns.seen -%}{%- set ns.seen = true -%}{{ m.content.split('<')[0].strip() }}{%- endif -%}{%- endfor -%}{{ ns.at }}",
    "{%- macro turn(role, text='') -%}[{{ role | upper }}] {{ text | tojson }}{%- endmacro -%}{%- for m in messages -%}{{ turn(m.role, m.content) }}{%- if not loop.last %}{% continue %}{% endif -%}{%- endfor -%}{{ strftime_now('%d %b %Y') }}",
    "{%- if tools is defined and tools -%}{{ tools | map(attribute='name') | join(', ') }}{%- endif -%}{{ messages | selectattr('role', 'equalto', 'user') | list | length }}{{ '%s-%d' | format('a', 3) }}{{ range(3) | list }}",
    "{% set x = {'a': [1, 2.5, none], 'b': \"c\" * 3} %}{{ x.items() | list }}{{ x['a'][-1] is none }}{{ messages[0].content.replace('e', '3').startswith('B') and 2 ** 3 // 3 }}",
    "{{ dates | default('none') }}{% for k, v in (options | default({})).items() %}{{ k }}={{ v | string }};{% endfor %}{% for m in messages %}{% for t in (tools or []) %}{{ t.function.name | default(t) }}{% endfor %}{{ m.role[:3] ~ (m.content | trim | length) }}{{ m.content | tojson(indent=2) }}{% endfor %}{% if enable_thinking is defined and enable_thinking %}<think>{% endif %}",
];
